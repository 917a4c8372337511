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
    rows, source = [], 0.0
    for method in METHODS:
        own = {cell.corruption: cell for cell in cells if cell.method == method}
        mean = sum(cell.accuracy for cell in own.values()) / len(own)
        source = mean if method == "source" else source
        rows.append(
            {"method": method}
            | {name: round(own[name].accuracy, 1) for name in CORRUPTIONS}
            | {"gain over source": round(mean - source, 1)}
            | {"seconds": round(sum(cell.seconds for cell in own.values()), 1)}
        )
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
