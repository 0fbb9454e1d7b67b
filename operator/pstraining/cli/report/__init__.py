"""The archive of `report`: `collection` reads its files, pstraining.redaction removes secrets, `archive` packs."""
