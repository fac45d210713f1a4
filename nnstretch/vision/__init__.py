"""Images in, answers that people look at out: classes, boxes and class maps from the outputs of a network."""
