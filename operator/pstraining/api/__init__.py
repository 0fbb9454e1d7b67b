"""The public API as data: models, names, labels, conditions and the contract with training pods. Pydantic only."""
