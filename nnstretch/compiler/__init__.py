"""From a model in any form to a session: processors, planning, streams, several plans."""
