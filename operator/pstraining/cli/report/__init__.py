"""What `report` puts into its archive: `collection` reads, `archive` packs. pstraining.redaction leaves out secrets."""
