"""Reading of the manifests that `-f` names, as kubectl does: sources (files, folders, URLs), texts and scalars."""
