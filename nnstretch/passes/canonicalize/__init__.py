"""Passes that bring ONNX operators into one form."""
