"""lampc: from an ONNX model to LampAttention, its accuracy and its cycles."""

__version__ = "0.1.0"
