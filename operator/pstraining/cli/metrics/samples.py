"""The samples of one scrape, parsed by `prometheus_client` from Prometheus' text format."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Samples:
    """The samples of one scrape."""

    values: dict[tuple[str, tuple[tuple[str, str], ...]], float]
    """Values by name and sorted labels."""

    def value(self, name: str) -> float | None:
        """Return the value of a metric without labels; None if it is missing."""
        return self.values.get((name, ()))

    def by(self, name: str, label: str) -> dict[str, float]:
        """Return the values of a metric with exactly this one label, by the label's value."""
        return {
            labels[0][1]: value
            for (found, labels), value in self.values.items()
            if found == name and [key for key, _ in labels] == [label]
        }


def read(text: str) -> Samples:
    """Parse the text of a scrape.

    Raises:
        ValueError: the text is not in the format.
    """
    from prometheus_client.parser import text_string_to_metric_families

    try:
        return Samples(
            {
                (sample.name, tuple(sorted(sample.labels.items()))): float(sample.value)
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            }
        )
    except (ValueError, IndexError) as error:  # IndexError: such as '{,\t=\\1{"'
        raise ValueError(" ".join(str(error).split()) or "a line is not a sample") from error
