"""The model as a graph of layers (onnx_ir), the passes over it, and the view that routines have of a layer."""
