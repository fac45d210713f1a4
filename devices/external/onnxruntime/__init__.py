"""ONNX Runtime inside a plan: the fallback of layers that no native routine covers, and a routine for all others."""
