"""The commands of `nnstretch`: a module NAME with a function NAME_command for each.

A command with commands of its own has them in `COMMANDS` of its module.
"""

# In the order in which a model goes through them. A new command is a module and a name here.
COMMANDS = (
    *("doctor", "devices", "zoo", "stretch", "train", "evaluate", "quantize"),
    *("tune", "profiles", "compile", "export", "run", "bench", "sweep", "report"),
)
