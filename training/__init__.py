"""Training and retraining of networks: data, recipes, loop, distillation, evaluation, checkpoints."""
