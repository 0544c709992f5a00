-- What the peer is still to be told, derived from the journal. `seq` is the offset of the entry that owes it.
CREATE TABLE applied (
    one      INTEGER PRIMARY KEY CHECK (one = 1),
    journal  BLOB    NOT NULL,
    through  INTEGER NOT NULL,
    location INTEGER NOT NULL
);

-- Charges that may be charged again, as far as they have been.
CREATE TABLE sums (
    charge  TEXT    PRIMARY KEY,
    charged INTEGER NOT NULL,
    told    INTEGER NOT NULL,
    parts   INTEGER NOT NULL
) WITHOUT ROWID;

-- `charge` is NULL where it is the same as the id: for all but late results. `total` is what the charge comes to in all.
-- `failed_at` is the entry by which it was given up before somebody replayed it.
CREATE TABLE pending (
    seq        INTEGER PRIMARY KEY,
    id         TEXT    NOT NULL UNIQUE,
    charge     TEXT,
    owner      TEXT    NOT NULL,
    cost       INTEGER NOT NULL,
    total      INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    failed_at  INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX pending_late ON pending (charge) WHERE charge IS NOT NULL;

CREATE TABLE dead (
    seq        INTEGER PRIMARY KEY,
    id         TEXT    NOT NULL UNIQUE,
    charge     TEXT,
    owner      TEXT    NOT NULL,
    cost       INTEGER NOT NULL,
    total      INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    failed_at  INTEGER NOT NULL,
    attempts   INTEGER NOT NULL,
    reason     TEXT    NOT NULL
);
CREATE INDEX dead_late ON dead (charge) WHERE charge IS NOT NULL;
