"""How models go out: ONNX files, TFLite files, programs of torch.export, and a file per branch of a branched network."""
