"""Record what the demo measures, for the table in the README."""

from __future__ import annotations

from records import write

from acclimate.demo.__main__ import COUNT, EPOCHS, measure


def main() -> None:
    rows = []
    for row in measure(COUNT, EPOCHS):
        print(row, flush=True)
        rows.append(row)
    protocol = {
        "data": "Fashion-MNIST, bundled",
        "images": COUNT,
        "epochs": EPOCHS,
        "batch_size": 64,
        "evaluation": "after-epoch",
        "seed": 0,
    }
    write("demo", protocol, rows)


if __name__ == "__main__":
    main()
