"""`nnstretch doctor`: what works on this machine, what is missing, and the command that mends it."""
