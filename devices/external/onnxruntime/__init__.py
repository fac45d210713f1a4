"""ONNX Runtime as an external engine: the fallback for layers without a native routine, and a routine for all others."""
