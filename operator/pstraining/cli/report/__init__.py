"""What `report` puts into its archive: `collection` reads, `redaction` leaves out secrets, `archive` packs."""
