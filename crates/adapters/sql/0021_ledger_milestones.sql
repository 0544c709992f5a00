-- Histories are chains: each entry names its owner's entry before it, and every 256th is a milestone, so that a moment long ago is found
-- without walking all the way. The pages of offsets that were there instead were copied in every row of an owner that was written,
-- which was a third of what a round cost.
--
--   ledger_entries.previous  the owner's entry before this one; 0 for the first
--   ledger_milestones        some of an owner's entries, where a walk can begin: written once, never changed
--
-- What is already there is carried over, which writes every entry once more: have as much room as the table takes, and some minutes
-- for some ten million. The functions take other rows than before, so nodes of an older version are refused by the database.
--
-- Checks are read anew by each statement that writes, so there are fewer and shorter ones. None is given up but that an entry's
-- moment is not negative and that a life has a record: both come from what else is checked.

SET LOCAL ROLE symphony_owner;

ALTER TABLE holdfast.ledger_entries ADD COLUMN previous bigint;
ALTER TABLE holdfast.ledger_entries DISABLE TRIGGER ledger_entries_append_only;
UPDATE holdfast.ledger_entries AS entry SET previous = known.previous
  FROM (SELECT entry_offset, lag(entry_offset, 1, 0::bigint) OVER (PARTITION BY owner ORDER BY entry_offset) AS previous
          FROM holdfast.ledger_entries) AS known
 WHERE known.entry_offset = entry.entry_offset;
ALTER TABLE holdfast.ledger_entries ENABLE ALWAYS TRIGGER ledger_entries_append_only;
ALTER TABLE holdfast.ledger_entries
    ALTER COLUMN previous SET NOT NULL,
    DROP CONSTRAINT ledger_entries_entry_offset_check,
    DROP CONSTRAINT ledger_entries_at_check,
    DROP CONSTRAINT ledger_entries_chain_check,
    DROP CONSTRAINT ledger_entries_payee_is_named,
    ADD CONSTRAINT ledger_entries_follows CHECK (entry_offset > previous AND previous >= 0),
    ADD CONSTRAINT ledger_entries_is_whole CHECK (octet_length(chain) = 32 AND (paid = 0 OR payee IS NOT NULL));
COMMENT ON COLUMN holdfast.ledger_entries.previous IS 'The owner''s entry before this one; 0 for the first.';

CREATE TABLE holdfast.ledger_milestones (
    owner        text COLLATE "C" NOT NULL,
    entry_offset bigint NOT NULL,
    at           bigint NOT NULL,
    PRIMARY KEY (owner, entry_offset)
);
COMMENT ON TABLE holdfast.ledger_milestones IS 'Every 256th entry of each owner: where a walk back along ledger_entries.previous can begin.';
INSERT INTO holdfast.ledger_milestones
SELECT numbered.owner, numbered.entry_offset, numbered.at
  FROM (SELECT owner, entry_offset, at, row_number() OVER (PARTITION BY owner ORDER BY entry_offset) AS number
          FROM holdfast.ledger_entries) AS numbered
 WHERE numbered.number % 256 = 0;
CREATE TRIGGER ledger_milestones_append_only
    BEFORE UPDATE OR DELETE OR TRUNCATE ON holdfast.ledger_milestones
    FOR EACH STATEMENT EXECUTE FUNCTION holdfast.refuse_change();
ALTER TABLE holdfast.ledger_milestones ENABLE ALWAYS TRIGGER ledger_milestones_append_only;
GRANT SELECT ON holdfast.ledger_milestones TO symphony_ledger, symphony_auditor;

DROP TABLE holdfast.ledger_histories;
ALTER TABLE holdfast.ledger_owners
    DROP COLUMN recent,
    DROP CONSTRAINT ledger_owners_entries_check,
    DROP CONSTRAINT ledger_owners_last_offset_check,
    DROP CONSTRAINT ledger_owners_no_overdraft,
    ADD CONSTRAINT ledger_owners_no_overdraft
        CHECK (least(available, held, escrowed, paid, open_holds) >= 0 AND least(entries, last_offset) > 0);
ALTER TABLE holdfast.ledger_lives DROP CONSTRAINT ledger_lives_records_check;

-- As before (0019), with one number less of each owner:
--   owner   available, held, open_holds, last_offset, entries, last_at, fence; body is the end of the chain
CREATE OR REPLACE FUNCTION holdfast.ledger_rows(owners text[], lives text[], keys text[], payees text[], budgets text[])
RETURNS TABLE (what text, name text, numbers bigint[], body bytea, place tid)
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    IF cardinality(ledger_rows.owners) > 0 THEN
        RETURN QUERY
        SELECT 'owner', found.owner,
               ARRAY[found.available, found.held, found.open_holds, found.last_offset, found.entries, found.last_at,
                     found.fence],
               found.chain, found.place
          FROM (SELECT DISTINCT unnest(ledger_rows.owners) COLLATE "C") AS named (owner)
         CROSS JOIN LATERAL (SELECT known.*, known.ctid AS place FROM holdfast.ledger_owners AS known
                              WHERE known.owner = named.owner LIMIT 1) AS found;
    END IF;
    IF cardinality(ledger_rows.lives) > 0 THEN
        RETURN QUERY
        SELECT 'life', found.life, ARRAY[entry.entry_offset], entry.body, found.place
          FROM unnest(ledger_rows.lives) AS named (life)
         CROSS JOIN LATERAL (SELECT known.*, known.ctid AS place FROM holdfast.ledger_lives AS known
                              WHERE known.life = named.life LIMIT 1) AS found
         CROSS JOIN LATERAL unnest(found.records) AS record (entry_offset)
         CROSS JOIN LATERAL (SELECT * FROM holdfast.ledger_entries AS known
                              WHERE known.entry_offset = record.entry_offset LIMIT 1) AS entry;
    END IF;
    IF cardinality(ledger_rows.keys) > 0 THEN
        RETURN QUERY
        SELECT 'key', found.key, ARRAY[found.entry_offset], found.body, NULL::tid
          FROM unnest(ledger_rows.keys) AS named (key)
         CROSS JOIN LATERAL (SELECT * FROM holdfast.ledger_entries AS known WHERE known.key = named.key LIMIT 1) AS found;
    END IF;
    IF cardinality(ledger_rows.payees) > 0 THEN
        RETURN QUERY
        SELECT 'payee', found.payee, ARRAY[found.balance, found.last_offset, found.entries], NULL::bytea, NULL::tid
          FROM unnest(ledger_rows.payees) AS named (payee)
         CROSS JOIN LATERAL (SELECT * FROM holdfast.ledger_payees AS known WHERE known.payee = named.payee LIMIT 1) AS found;
    END IF;
    IF cardinality(ledger_rows.budgets) > 0 THEN
        RETURN QUERY
        SELECT 'budget', found.budget, ARRAY[found.day, found.today, found.total, found.last_offset], NULL::bytea, NULL::tid
          FROM (SELECT DISTINCT unnest(ledger_rows.budgets) COLLATE "C") AS named (budget)
         CROSS JOIN LATERAL (SELECT * FROM holdfast.ledger_budgets AS known WHERE known.budget = named.budget LIMIT 1) AS found;
    END IF;
    RETURN QUERY VALUES ('moment', '', ARRAY[(extract(epoch FROM clock_timestamp()) * 1000)::bigint], NULL::bytea, NULL::tid);
END
$$;

-- As before (0019), with the rows of ledger_rows.
CREATE OR REPLACE FUNCTION holdfast.ledger_open(
    owners text[], lives text[], keys text[], payees text[], budgets text[], in_doubt bigint[])
RETURNS TABLE (what text, name text, numbers bigint[], body bytea, place tid)
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    of_lives    record;
    all_owners  text[] := ledger_open.owners;
    all_budgets text[] := ledger_open.budgets;
BEGIN
    IF cardinality(ledger_open.lives) > 0 THEN
        of_lives := holdfast.ledger_of_lives(ledger_open.lives);
        all_owners := all_owners || of_lives.owners;
        all_budgets := all_budgets || of_lives.budgets;
    END IF;
    RETURN QUERY
        SELECT 'owner', locked.owner,
               ARRAY[locked.available, locked.held, locked.open_holds, locked.last_offset, locked.entries, locked.last_at,
                     locked.fence],
               locked.chain, locked.ctid
          FROM holdfast.ledger_owners AS locked
         WHERE locked.owner = ANY (all_owners) ORDER BY locked.owner FOR NO KEY UPDATE;
    IF cardinality(ledger_open.payees) > 0 THEN
        RETURN QUERY
            SELECT 'payee', locked.payee, ARRAY[locked.balance, locked.last_offset, locked.entries], NULL::bytea, NULL::tid
              FROM holdfast.ledger_payees AS locked
             WHERE locked.payee = ANY (ledger_open.payees) ORDER BY locked.payee FOR NO KEY UPDATE;
    END IF;
    IF cardinality(all_budgets) > 0 THEN
        RETURN QUERY
            SELECT 'budget', locked.budget, ARRAY[locked.day, locked.today, locked.total, locked.last_offset],
                   NULL::bytea, NULL::tid
              FROM holdfast.ledger_budgets AS locked
             WHERE locked.budget = ANY (all_budgets) ORDER BY locked.budget FOR NO KEY UPDATE;
    END IF;

    -- Statements of their own see what was committed while it was waited for the locks.
    IF cardinality(ledger_open.lives) > 0 OR cardinality(ledger_open.keys) > 0 THEN
        RETURN QUERY SELECT found.what, found.name, found.numbers, found.body, found.place
          FROM holdfast.ledger_rows('{}', ledger_open.lives, ledger_open.keys, '{}', '{}') AS found
         WHERE found.what <> 'moment';
    END IF;
    IF cardinality(ledger_open.in_doubt) > 0 THEN
        RETURN QUERY SELECT 'done', '', ARRAY[entry.entry_offset], entry.chain, NULL::tid
          FROM holdfast.ledger_entries AS entry WHERE entry.entry_offset = ANY (ledger_open.in_doubt);
    END IF;
    what := 'block';
    name := '';
    numbers := ARRAY[nextval('holdfast.ledger_blocks') * 8192, (extract(epoch FROM clock_timestamp()) * 1000)::bigint];
    RETURN NEXT;
END
$$;

DROP FUNCTION holdfast.ledger_admit(bigint, holdfast.ledger_new_entry[], holdfast.ledger_moved_owner[], integer,
    holdfast.ledger_new_life[], holdfast.ledger_moved_life[], holdfast.ledger_new_payee[], holdfast.ledger_new_budget[],
    holdfast.ledger_obligation[]);
DROP TYPE holdfast.ledger_moved_owner;
ALTER TYPE holdfast.ledger_new_entry ADD ATTRIBUTE previous bigint;
-- What all of a batch's entries together do to an owner. `place` and `seen` are where the row was and the last entry that was seen
-- of it when the batch was decided; NULL and 0 if it is new.
CREATE TYPE holdfast.ledger_moved_owner AS (
    owner text, place tid, seen bigint, available bigint, held bigint, escrow bigint, paid bigint, revenue bigint, treasury bigint,
    opens integer, entries bigint, last_offset bigint, last_at bigint, chain bytea, fence bigint);
CREATE TYPE holdfast.ledger_milestone AS (owner text, entry_offset bigint, at bigint);

-- As before (0020), with milestones among the entries, and without pages.
CREATE FUNCTION holdfast.ledger_admit(
    decided_at bigint, entries holdfast.ledger_new_entry[], owners holdfast.ledger_moved_owner[],
    milestones holdfast.ledger_milestone[], begun holdfast.ledger_new_life[], moved holdfast.ledger_moved_life[],
    payees holdfast.ledger_new_payee[], budgets holdfast.ledger_new_budget[], obligations holdfast.ledger_obligation[],
    OUT owner_places tid[], OUT begun_places tid[], OUT moved_places tid[], OUT block bigint, OUT moment bigint)
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    found_there bigint;
    made        tid[];
    agrees      boolean;
BEGIN
    moment := (extract(epoch FROM clock_timestamp()) * 1000)::bigint;
    IF moment - ledger_admit.decided_at > 3000 THEN
        RAISE EXCEPTION 'STALE: it was decided long ago' USING ERRCODE = 'P7101';
    END IF;
    -- The steps from each entry to the one before it lead from where each owner was to where the owner is now.
    SELECT (sums.available, sums.held, sums.escrow, sums.paid, sums.revenue, sums.treasury, sums.entries, sums.steps, sums.paid)
           IS NOT DISTINCT FROM
           (said.available, said.held, said.escrow, said.paid, said.revenue, said.treasury, said.entries, said.steps,
            CASE WHEN cardinality(ledger_admit.payees) > 0
                 THEN (SELECT sum(new.paid) FROM unnest(ledger_admit.payees) AS new) ELSE 0 END)
      INTO agrees
      FROM (SELECT sum(available) AS available, sum(held) AS held, sum(escrow) AS escrow, sum(paid) AS paid,
                   sum(revenue) AS revenue, sum(treasury) AS treasury, count(*) AS entries,
                   sum(entry_offset - previous) AS steps
              FROM unnest(ledger_admit.entries)) AS sums,
           (SELECT sum(available) AS available, sum(held) AS held, sum(escrow) AS escrow, sum(paid) AS paid,
                   sum(revenue) AS revenue, sum(treasury) AS treasury, sum(entries) AS entries, sum(last_offset - seen) AS steps
              FROM unnest(ledger_admit.owners)) AS said;
    IF agrees IS NOT TRUE THEN
        RAISE EXCEPTION 'UNBALANCED: the balances are not what the entries say' USING ERRCODE = 'P7102';
    END IF;

    -- By place, and not by name: whoever holds the lock, or was the last to write it, knows it, and a look by name is most of what
    -- this costs. (IS NOT DISTINCT FROM: no index can answer that, or it would be asked.)
    WITH there AS (
        UPDATE holdfast.ledger_owners AS owner
           SET available = owner.available + new.available, held = owner.held + new.held,
               escrowed = owner.escrowed + new.escrow, paid = owner.paid + new.paid,
               revenue = owner.revenue + new.revenue, treasury = owner.treasury + new.treasury,
               open_holds = owner.open_holds + new.opens, entries = owner.entries + new.entries,
               last_offset = new.last_offset, last_at = new.last_at, chain = new.chain
          FROM unnest(ledger_admit.owners) AS new
         WHERE owner.ctid = new.place AND owner.owner IS NOT DISTINCT FROM new.owner
           AND owner.last_offset = new.seen AND owner.fence = new.fence
        RETURNING owner.ctid AS place)
    SELECT array_agg(place), count(*) INTO owner_places, found_there FROM there;
    IF found_there < cardinality(ledger_admit.owners) THEN
        PERFORM holdfast.ledger_claim('owner',
            ARRAY(SELECT new.owner FROM unnest(ledger_admit.owners) AS new WHERE new.seen = 0));
        WITH made AS (
            INSERT INTO holdfast.ledger_owners
            SELECT new.owner, new.available, new.held, new.escrow, new.paid, new.revenue, new.treasury, new.opens, new.entries,
                   new.last_offset, new.last_at, new.chain, new.fence
              FROM unnest(ledger_admit.owners) AS new WHERE new.seen = 0
            RETURNING ctid AS place)
        SELECT array_agg(place), found_there + count(*) INTO made, found_there FROM made;
        IF found_there < cardinality(ledger_admit.owners) THEN
            RAISE EXCEPTION 'STALE: an owner has moved on' USING ERRCODE = 'P7101';
        END IF;
        owner_places := owner_places || made;
    END IF;

    IF cardinality(ledger_admit.payees) > 0 THEN
        UPDATE holdfast.ledger_payees AS payee
           SET balance = payee.balance + new.paid, entries = payee.entries + new.entries, last_offset = new.last_offset
          FROM unnest(ledger_admit.payees) AS new
         CROSS JOIN LATERAL (SELECT known.ctid AS place FROM holdfast.ledger_payees AS known
                              WHERE known.payee = new.payee AND known.last_offset = new.seen LIMIT 1) AS found
         WHERE payee.ctid = found.place AND payee.last_offset = new.seen;
        GET DIAGNOSTICS found_there = ROW_COUNT;
        IF found_there < cardinality(ledger_admit.payees) THEN
            PERFORM holdfast.ledger_claim('payee',
                ARRAY(SELECT new.payee FROM unnest(ledger_admit.payees) AS new WHERE new.seen = 0));
        END IF;
        WITH made AS (
            INSERT INTO holdfast.ledger_payees
            SELECT new.payee, new.paid, new.entries, new.last_offset
              FROM unnest(ledger_admit.payees) AS new WHERE new.seen = 0
            RETURNING 1)
        SELECT found_there + count(*) INTO found_there FROM made;
        IF found_there < cardinality(ledger_admit.payees) THEN
            RAISE EXCEPTION 'STALE: a payee has moved on' USING ERRCODE = 'P7101';
        END IF;
    END IF;
    IF cardinality(ledger_admit.budgets) > 0 THEN
        UPDATE holdfast.ledger_budgets AS budget
           SET day = new.day, today = new.today, total = new.total, last_offset = new.last_offset
          FROM unnest(ledger_admit.budgets) AS new
         CROSS JOIN LATERAL (SELECT known.ctid AS place FROM holdfast.ledger_budgets AS known
                              WHERE known.budget = new.budget AND known.last_offset = new.seen LIMIT 1) AS found
         WHERE budget.ctid = found.place AND budget.last_offset = new.seen;
        GET DIAGNOSTICS found_there = ROW_COUNT;
        IF found_there < cardinality(ledger_admit.budgets) THEN
            PERFORM holdfast.ledger_claim('budget',
                ARRAY(SELECT new.budget FROM unnest(ledger_admit.budgets) AS new WHERE new.seen = 0));
        END IF;
        WITH made AS (
            INSERT INTO holdfast.ledger_budgets
            SELECT new.budget, new.day, new.today, new.total, new.last_offset
              FROM unnest(ledger_admit.budgets) AS new WHERE new.seen = 0
            RETURNING 1)
        SELECT found_there + count(*) INTO found_there FROM made;
        IF found_there < cardinality(ledger_admit.budgets) THEN
            RAISE EXCEPTION 'STALE: a budget has moved on' USING ERRCODE = 'P7101';
        END IF;
    END IF;

    -- Those with keys by their keys before the others: keys are locked as they are written.
    INSERT INTO holdfast.ledger_entries
        (entry_offset, at, available, held, escrow, paid, revenue, treasury, kind, owner, life, key, payee, body, chain, previous)
    SELECT new.entry_offset, new.at, new.available, new.held, new.escrow, new.paid, new.revenue, new.treasury,
           new.kind, new.owner, new.life, new.key, new.payee, new.body, new.chain, new.previous
      FROM unnest(ledger_admit.entries) AS new;
    IF cardinality(ledger_admit.milestones) > 0 THEN
        INSERT INTO holdfast.ledger_milestones SELECT new.owner, new.entry_offset, new.at FROM unnest(ledger_admit.milestones) AS new;
    END IF;

    IF cardinality(ledger_admit.moved) > 0 THEN
        WITH there AS (
            UPDATE holdfast.ledger_lives AS life
               SET state = new.state, held = new.held, expires_at = new.expires_at, records = life.records || new.records
              FROM unnest(ledger_admit.moved) AS new
             WHERE life.ctid = new.place AND life.life IS NOT DISTINCT FROM new.life AND life.owner = new.owner
               AND life.records[cardinality(life.records)] = new.seen
            RETURNING life.ctid AS place)
        SELECT array_agg(place), count(*) INTO moved_places, found_there FROM there;
        IF found_there < cardinality(ledger_admit.moved) THEN
            RAISE EXCEPTION 'STALE: a charge or an escrow has moved on' USING ERRCODE = 'P7101';
        END IF;
    END IF;
    IF cardinality(ledger_admit.begun) > 0 THEN
        WITH made AS (
            INSERT INTO holdfast.ledger_lives
            SELECT new.life, new.owner, new.state, new.held, new.expires_at, new.budgets, new.records
              FROM unnest(ledger_admit.begun) AS new
            RETURNING ctid AS place)
        SELECT array_agg(place) INTO begun_places FROM made;
    END IF;

    -- What is owed is owed by the same commit.
    IF cardinality(ledger_admit.obligations) > 0 THEN
        PERFORM holdfast.owe_payment_outbox_batch(
            array_agg(owed.charge), array_agg(owed.owner), array_agg(owed.idempotency_key),
            array_agg('peer'::text), array_agg(owed.payload::jsonb), array_agg(owed.made_at))
          FROM unnest(ledger_admit.obligations) AS owed;
    END IF;
    block := nextval('holdfast.ledger_blocks') * 8192;
END
$$;

REVOKE ALL ON FUNCTION holdfast.ledger_admit(bigint, holdfast.ledger_new_entry[], holdfast.ledger_moved_owner[],
    holdfast.ledger_milestone[], holdfast.ledger_new_life[], holdfast.ledger_moved_life[], holdfast.ledger_new_payee[],
    holdfast.ledger_new_budget[], holdfast.ledger_obligation[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION holdfast.ledger_admit(bigint, holdfast.ledger_new_entry[], holdfast.ledger_moved_owner[],
    holdfast.ledger_milestone[], holdfast.ledger_new_life[], holdfast.ledger_moved_life[], holdfast.ledger_new_payee[],
    holdfast.ledger_new_budget[], holdfast.ledger_obligation[]) TO symphony_ledger;
