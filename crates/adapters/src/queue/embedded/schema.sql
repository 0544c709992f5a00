-- Every item of the queue, derived from the steps in the journal. `seq` is the number of the step that put it. `chain` is the hash
-- of the frame before `location`: it tells whether this is still the journal that the items are from.
CREATE TABLE filed (
    one      INTEGER PRIMARY KEY CHECK (one = 1),
    journal  BLOB    NOT NULL,
    through  INTEGER NOT NULL,
    location INTEGER NOT NULL,
    chain    BLOB    NOT NULL
);

-- `item` is all of it, with a checksum; the other columns are what is looked for. `ended_at` is NULL while it has not ended.
-- `escrow` is a hash of the escrow's id: its index is in no order that new rows come in, so it is kept small.
CREATE TABLE items (
    seq      INTEGER PRIMARY KEY,
    id       TEXT    NOT NULL UNIQUE,
    escrow   INTEGER NOT NULL,
    payee    TEXT    NOT NULL,
    state    TEXT    NOT NULL,
    ended_at INTEGER,
    item     BLOB    NOT NULL
);
CREATE INDEX items_of_escrow ON items (escrow);
CREATE INDEX items_open ON items (seq) WHERE ended_at IS NULL;
-- Read backwards, the last to end comes first; written forwards, what ends is added at the end of a page. The few that ended at the
-- same moment are put in the order of their ids when they are read.
CREATE INDEX items_ended ON items (state, ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX items_ended_of_payee ON items (payee, state, ended_at) WHERE ended_at IS NOT NULL;
