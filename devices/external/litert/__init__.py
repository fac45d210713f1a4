"""TFLite: float32 networks as .tflite files, for engines that read nothing else."""
