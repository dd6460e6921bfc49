"""Sequential transduction units: the parts of the schema's HSTU models."""
