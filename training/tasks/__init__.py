"""What networks are trained for: classification, segmentation, detection."""
