"""Several plans for one network, and who decides which of them a run takes."""
