"""The plan: schema, memory, validation, packaging."""
