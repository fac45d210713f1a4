"""The command line. Its modules import nothing heavy: commands do, when they run."""
