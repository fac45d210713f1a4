"""What exists in hardware: processors with their routines, the native engine, and the targets that packages run on."""
