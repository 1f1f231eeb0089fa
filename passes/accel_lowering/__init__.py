"""From tiled attention to programs of the accelerator: the parts of `lamp-convert-to-accel`."""
