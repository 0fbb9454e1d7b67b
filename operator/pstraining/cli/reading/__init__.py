"""From what `-f` names to objects, as kubectl reads them: sources (files, folders, URLs), texts, scalars."""
