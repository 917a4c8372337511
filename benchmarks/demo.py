"""Record what the demo measures, for the table in the README."""

from __future__ import annotations

from records import write

from acclimate.demo.measure import CORRUPTIONS, METHODS, SEVERITY, measure
from acclimate.demo.show import COUNT, EPOCHS


def main() -> None:
    cells = []
    for cell in measure(count=COUNT, epochs=EPOCHS):
        cells.append(cell)
        print(cell.method, cell.corruption, cell.over_epochs, round(cell.seconds, 1), flush=True)
    found = {(cell.corruption, cell.method): cell for cell in cells}
    accuracies = {c: {m: found[c, m].accuracy for m in METHODS} for c in CORRUPTIONS}
    means = {m: sum(row[m] for row in accuracies.values()) / len(CORRUPTIONS) for m in METHODS}
    sums: dict[str, dict[str, float]] = {
        "**mean**": means,
        "gain over source": {m: means[m] - means["source"] for m in METHODS},
        "seconds to adapt": {m: sum(found[c, m].seconds for c in CORRUPTIONS) for m in METHODS},
    }
    rows = [
        {"accuracy %": name.replace("_", " ")} | {m: round(value, 1) for m, value in row.items()}
        for name, row in (*accuracies.items(), *sums.items())
    ]
    protocol = {
        "data": "Fashion-MNIST, bundled",
        "images": COUNT,
        "severity": SEVERITY,
        "epochs": EPOCHS,
        "batch_size": 64,
        "evaluation": "after-epoch",
        "seed": 0,
    }
    write("demo", protocol, rows)


if __name__ == "__main__":
    main()
