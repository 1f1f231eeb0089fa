"""What lampc recognises and gets right: every case of ONNX's suite and of the corpus, counted by one command."""
