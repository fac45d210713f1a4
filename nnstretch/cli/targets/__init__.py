"""Commands on other machines: `--target` of bench, run, tune and stretch."""
