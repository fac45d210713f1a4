"""LiteRT as an external engine, and conversion of graphs to TFLite files in float32 and int8."""
