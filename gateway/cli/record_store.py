"""The records on this machine, for commands that read them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.options import settings_from
from gateway.cli.output import UserError

if TYPE_CHECKING:
    from measure.records import Record
    from measure.store import Store


@contextmanager
def record_store(config: Path | None) -> Iterator[Store]:
    """Open the store of the settings; a running Paceline may have it open too. Its errors become ``UserError``."""
    from measure.database import StoreError
    from measure.place import records_in
    from measure.store import Store

    path = records_in(settings_from(config).data_dir)
    store = Store(path)
    try:
        if not store.persistent:
            raise UserError(f"{path} cannot be used", fix="`paceline doctor` says why.")
        yield store
    except StoreError as error:
        raise UserError(f"{path}: {error}") from None
    finally:
        store.close()


def all_records(store: Store) -> list[Record]:
    """Return every record, imported ones too, the newest first."""
    from measure.store import RECORDS_IN_ALL

    records = [*store.records(limit=RECORDS_IN_ALL), *store.imported()]
    return sorted(records, key=lambda record: record.at, reverse=True)
