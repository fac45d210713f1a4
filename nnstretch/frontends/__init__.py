"""How models come in: ONNX files, torch modules, and names of either."""
