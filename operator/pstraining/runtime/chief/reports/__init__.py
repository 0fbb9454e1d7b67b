"""The chief's reports during training: progress, epochs, callbacks, summaries and unused parts of a layout."""
