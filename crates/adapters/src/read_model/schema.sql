-- The read model, version 2: derived from the journal, safe to delete, rebuilt by `holdfast rebuild`.
-- Amounts are whole millionths of a credit. One narrow row an entry, and a second one
-- where escrows, payees or the treasury are concerned, which is rare; `postings` shows them as double entry.

CREATE TABLE applied (
    only_row  INTEGER PRIMARY KEY CHECK (only_row = 1),
    journal   BLOB    NOT NULL,
    through   INTEGER NOT NULL,  -- the last entry applied
    location  INTEGER NOT NULL   -- where the journal is read on
);

CREATE TABLE kinds (kind INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE states (state INTEGER PRIMARY KEY, name TEXT NOT NULL);

CREATE TABLE entries (
    "offset"        INTEGER PRIMARY KEY,
    at              INTEGER NOT NULL,  -- milliseconds since 1970
    kind            INTEGER NOT NULL,
    owner           TEXT    NOT NULL,
    correlation     TEXT    NOT NULL,  -- the reservation, the escrow, or the key of a mint
    state           INTEGER NOT NULL,  -- what it left the reservation or escrow in
    actor           TEXT    NOT NULL,
    d_available     INTEGER NOT NULL,
    d_held          INTEGER NOT NULL,
    d_revenue       INTEGER NOT NULL,
    available       INTEGER NOT NULL,  -- the owner's, after it
    held            INTEGER NOT NULL,  -- the owner's, after it
    previous        INTEGER NOT NULL   -- the owner's entry before it; 0 if none
);

CREATE TABLE further (
    "offset"        INTEGER PRIMARY KEY,
    d_escrow        INTEGER NOT NULL,
    d_payee         INTEGER NOT NULL,
    d_treasury      INTEGER NOT NULL,
    payee           TEXT,
    payee_balance   INTEGER,           -- after it
    payee_previous  INTEGER            -- the payee's entry before it; 0 if none
);

-- Every 64th entry of an account holder, so that a balance long ago is found without walking back to it from today.
CREATE TABLE milestones (
    holder    TEXT    NOT NULL,
    "offset"  INTEGER NOT NULL,
    PRIMARY KEY (holder, "offset")
) WITHOUT ROWID;

-- The outer ends of the books at the end of each batch applied.
CREATE TABLE system_balances (
    "offset"  INTEGER PRIMARY KEY,
    revenue   INTEGER NOT NULL,
    treasury  INTEGER NOT NULL
);

CREATE VIEW postings AS
    SELECT "offset", 'user:' || owner || ':available' AS account, d_available AS change FROM entries WHERE d_available <> 0
    UNION ALL SELECT "offset", 'user:' || owner || ':held', d_held FROM entries WHERE d_held <> 0
    UNION ALL SELECT "offset", 'system:revenue', d_revenue FROM entries WHERE d_revenue <> 0
    UNION ALL SELECT "offset", 'escrow:' || correlation, d_escrow FROM further JOIN entries USING ("offset") WHERE d_escrow <> 0
    UNION ALL SELECT "offset", 'payee:' || payee || ':available', d_payee FROM further WHERE d_payee <> 0
    UNION ALL SELECT "offset", 'treasury:usdc_received', d_treasury FROM further WHERE d_treasury <> 0;
