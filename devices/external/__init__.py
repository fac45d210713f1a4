"""External engines (ONNX Runtime, LiteRT) as routines and as processors."""
