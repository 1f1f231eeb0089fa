"""`python -m tests.golden.regenerate`: write the golden vectors anew; review the change before committing it."""

import json

from tests.golden.vectors import FOLDER, SHAPES, vectors


def main() -> None:
    """Write one JSON file per shape and say which of them changed."""
    for shape in SHAPES:
        path = FOLDER / f"{shape}.json"
        text = json.dumps(vectors(shape), indent=1) + "\n"
        changed = not path.exists() or path.read_text() != text
        path.write_text(text)
        print(f"{path.name}: {'changed' if changed else 'the same'}")


if __name__ == "__main__":
    main()
