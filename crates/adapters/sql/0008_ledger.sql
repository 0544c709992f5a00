-- The ledger's tables: the journal of an engine that several nodes share.
--
--   ledger_entries   what happened, as balanced postings: written once, never changed                  (the truth)
--   ledger_owners    each owner's balances, and the end of the owner's history
--   ledger_payees    what each payee has earned
--   ledger_budgets   what has been used of each budget
--   ledger_lives     where each charge and each escrow stands
--   ledger_postings  a view: a row for each account that an entry changed
--
-- A node loads what its requests may look at and locks it (ledger_open), decides by the rules that every engine has, and admits
-- what came of it (ledger_admit), in one transaction. The rules are in the program; what must never break is here:
--   * an entry's postings sum to zero                          CHECK ledger_entries_balanced
--   * nobody spends what they do not have                      CHECK ledger_owners_no_overdraft
--   * all that an owner ever had is somewhere                  CHECK ledger_owners_conserved
--   * a key makes one entry                                    UNIQUE ledger_entries_once
--   * entries are never changed                                TRIGGER ledger_entries_append_only
--   * what was decided on is what is there                     the guards of ledger_admit (P7101)
--
-- No row is everybody's: revenue and treasury are kept with each owner, and are the sum over all when somebody asks. So owners
-- do not wait for one another.
--
-- Amounts are millionths of a credit. Moments are milliseconds since 1970. Names sort by their bytes, as the program sorts them.

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'symphony_ledger') THEN
        BEGIN
            CREATE ROLE symphony_ledger NOLOGIN;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            -- Another database of this server was migrated at the same moment.
            NULL;
        END;
    END IF;
    IF EXISTS (SELECT FROM pg_catalog.pg_roles
               WHERE rolname = 'symphony_ledger'
                 AND (rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls))
    THEN
        RAISE EXCEPTION 'a role symphony_ledger is there already and may do more than it should'
            USING HINT = 'it may not be superuser, make roles or databases, replicate or bypass row security';
    END IF;
END
$$;
ALTER ROLE symphony_ledger SET search_path = holdfast, pg_temp;

SET LOCAL ROLE symphony_owner;

COMMENT ON SCHEMA holdfast IS
    'The ledger and the leased payment outbox. Programs call their functions; nobody writes their tables.';

-- Which ledger this is: what was exported from another is not taken for it.
CREATE TABLE holdfast.ledger_identity (
    ledger_id uuid PRIMARY KEY,
    made_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    is_one    boolean NOT NULL DEFAULT true UNIQUE CHECK (is_one)
);
INSERT INTO holdfast.ledger_identity (ledger_id) VALUES (gen_random_uuid());

-- Offsets come in blocks of 8,192, one for each batch: an entry's is known before it is written, nobody waits for a number, and
-- those of one owner grow. What a batch does not need is a gap.
CREATE SEQUENCE holdfast.ledger_blocks AS bigint MAXVALUE 1000000000000;

CREATE TABLE holdfast.ledger_entries (
    entry_offset bigint PRIMARY KEY CHECK (entry_offset > 0),
    at           bigint NOT NULL CHECK (at >= 0),
    -- What it changes, account by account.
    available    bigint NOT NULL,
    held         bigint NOT NULL,
    escrow       bigint NOT NULL,
    paid         bigint NOT NULL,
    revenue      bigint NOT NULL,
    treasury     bigint NOT NULL,
    kind         text NOT NULL,
    owner        text COLLATE "C" NOT NULL,
    -- c:ID for a charge, e:ID for an escrow; NULL for a mint.
    life         text COLLATE "C",
    key          text COLLATE "C",
    payee        text COLLATE "C",
    -- The entry as the program wrote it, which says all of it, and a hash over it and the owner's entry before it.
    body         bytea NOT NULL,
    chain        bytea NOT NULL CHECK (octet_length(chain) = 32),
    CONSTRAINT ledger_entries_balanced CHECK (available + held + escrow + paid + revenue + treasury = 0),
    CONSTRAINT ledger_entries_payee_is_named CHECK (paid = 0 OR payee IS NOT NULL)
);
CREATE UNIQUE INDEX ledger_entries_once ON holdfast.ledger_entries (key) WHERE key IS NOT NULL;
COMMENT ON INDEX holdfast.ledger_entries_once IS 'A key makes one entry, for ever.';
CREATE INDEX ledger_entries_of_owner ON holdfast.ledger_entries (owner, entry_offset);
-- Entries are written about in the order of time: this is tiny, and finds a day.
CREATE INDEX ledger_entries_at ON holdfast.ledger_entries USING brin (at) WITH (pages_per_range = 32);
CREATE INDEX ledger_entries_of_payee ON holdfast.ledger_entries (payee, entry_offset) WHERE payee IS NOT NULL;

CREATE TABLE holdfast.ledger_owners (
    owner       text COLLATE "C" PRIMARY KEY,
    available   bigint NOT NULL,
    held        bigint NOT NULL,
    escrowed    bigint NOT NULL,
    -- What went to payees, to revenue, and came from the treasury.
    paid        bigint NOT NULL,
    revenue     bigint NOT NULL,
    treasury    bigint NOT NULL,
    open_holds  integer NOT NULL,
    entries     bigint NOT NULL CHECK (entries > 0),
    last_offset bigint NOT NULL CHECK (last_offset > 0),
    last_at     bigint NOT NULL,
    chain       bytea NOT NULL,
    CONSTRAINT ledger_owners_no_overdraft
        CHECK (available >= 0 AND held >= 0 AND escrowed >= 0 AND paid >= 0 AND open_holds >= 0),
    CONSTRAINT ledger_owners_conserved CHECK (available + held + escrowed + paid + revenue + treasury = 0)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

CREATE TABLE holdfast.ledger_payees (
    payee       text COLLATE "C" PRIMARY KEY,
    balance     bigint NOT NULL CHECK (balance >= 0),
    entries     bigint NOT NULL CHECK (entries > 0),
    last_offset bigint NOT NULL CHECK (last_offset > 0)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

CREATE TABLE holdfast.ledger_budgets (
    budget      text COLLATE "C" PRIMARY KEY,
    -- The newest day, since 1970, on which anything was reserved, and what was used on it and in all.
    day         bigint NOT NULL,
    today       bigint NOT NULL CHECK (today >= 0),
    total       bigint NOT NULL CHECK (total >= 0),
    last_offset bigint NOT NULL CHECK (last_offset > 0)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

CREATE TABLE holdfast.ledger_lives (
    life       text COLLATE "C" PRIMARY KEY,
    owner      text COLLATE "C" NOT NULL,
    state      text NOT NULL,
    held       bigint NOT NULL CHECK (held >= 0),
    -- When its hold ends by itself; NULL once it has ended, and for an escrow, which does not.
    expires_at bigint,
    budgets    text[] COLLATE "C" NOT NULL,
    -- The offsets of its entries, in order: a life is read without an index over all entries.
    records    bigint[] NOT NULL CHECK (cardinality(records) > 0)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX ledger_lives_expiring ON holdfast.ledger_lives (expires_at, life) WHERE expires_at IS NOT NULL;

CREATE VIEW holdfast.ledger_postings AS
SELECT entry.entry_offset, posting.account, posting.change
  FROM holdfast.ledger_entries AS entry
 CROSS JOIN LATERAL (VALUES ('user:' || entry.owner || ':available', entry.available),
                            ('user:' || entry.owner || ':held', entry.held),
                            ('escrow:' || substr(entry.life, 3), entry.escrow),
                            ('payee:' || entry.payee || ':available', entry.paid),
                            ('system:revenue', entry.revenue),
                            ('treasury:usdc_received', entry.treasury)) AS posting (account, change)
 WHERE posting.change <> 0;
COMMENT ON VIEW holdfast.ledger_postings IS 'A row for each account that an entry changed, and by how much.';

CREATE TRIGGER ledger_entries_append_only
    BEFORE UPDATE OR DELETE OR TRUNCATE ON holdfast.ledger_entries
    FOR EACH STATEMENT EXECUTE FUNCTION holdfast.refuse_change();
-- Always: not even a session that plays a replica gets by.
ALTER TABLE holdfast.ledger_entries ENABLE ALWAYS TRIGGER ledger_entries_append_only;
