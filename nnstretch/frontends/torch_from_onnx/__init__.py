"""From an ONNX graph to a torch module with the graph's weights, to be branched and trained like any other."""
