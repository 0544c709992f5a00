-- Who may do what, for all nodes: API keys, limits and signing keys.
--
--   access_keys          API and admin keys: a hash of each, never the key itself
--   access_limits        what accounts, teams and organisations may spend (what they have used is in ledger_budgets)
--   access_signing_keys  the keys that bearer tokens are signed with: SECRET, and read by nodes alone
--   access_state         one row: the version, and who tells the first admin key
--
-- A node keeps all of it in memory and asks nothing here on a request's way. Every change takes the one row of access_state
-- first, raises the version, marks what it changes with it, and notifies. So changes come one after the other, and whoever has
-- seen version N has missed nothing that is marked N or less. Notifications may be lost: nodes look at the version besides.
--
-- Nodes write through the functions below and no other way: a key that was revoked stays so, and nothing is ever renamed.
--
-- Amounts are millionths of a credit. Moments are milliseconds since 1970.

SET LOCAL ROLE symphony_owner;

CREATE TABLE holdfast.access_state (
    is_one               boolean PRIMARY KEY DEFAULT true CHECK (is_one),
    version              bigint NOT NULL DEFAULT 0 CHECK (version >= 0),
    -- Who is about to tell the first admin key, since when; and when it was told.
    first_key_claimed_at timestamptz,
    first_key_told_at    timestamptz
);
INSERT INTO holdfast.access_state DEFAULT VALUES;

CREATE TABLE holdfast.access_keys (
    id          text COLLATE "C" PRIMARY KEY,
    hash        bytea NOT NULL UNIQUE CHECK (octet_length(hash) = 32),
    -- Its first characters, to know it by.
    hint        text NOT NULL,
    account     text NOT NULL,
    name        text,
    scopes      text NOT NULL,
    daily_limit bigint CHECK (daily_limit >= 0),
    total_limit bigint CHECK (total_limit >= 0),
    made_at     bigint NOT NULL,
    expires_at  bigint,
    revoked_at  bigint,
    version     bigint NOT NULL
);
CREATE INDEX access_keys_changed ON holdfast.access_keys (version);

CREATE TABLE holdfast.access_limits (
    -- account:NAME, team:NAME or organisation:NAME.
    spender  text COLLATE "C" PRIMARY KEY,
    per_day  bigint CHECK (per_day >= 0),
    in_total bigint CHECK (in_total >= 0),
    -- The team of an account, the organisation of a team.
    within   text,
    set_at   bigint NOT NULL,
    version  bigint NOT NULL
);
CREATE INDEX access_limits_changed ON holdfast.access_limits (version);

CREATE TABLE holdfast.access_signing_keys (
    kid      text COLLATE "C" PRIMARY KEY,
    -- The newest signs.
    made_at  bigint NOT NULL UNIQUE,
    -- PKCS#8, with the private key.
    document bytea NOT NULL
);
COMMENT ON TABLE holdfast.access_signing_keys IS 'Private keys: whoever reads them can sign as any service or administrator.';

CREATE FUNCTION holdfast.access_now() RETURNS bigint
    LANGUAGE sql VOLATILE
    SET search_path = pg_catalog, holdfast, pg_temp
AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint $$;
REVOKE ALL ON FUNCTION holdfast.access_now() FROM PUBLIC;

-- Begins a change: nobody else changes anything until this transaction ends.
CREATE FUNCTION holdfast.access_advance() RETURNS bigint
    LANGUAGE plpgsql
    SET search_path = pg_catalog, holdfast, pg_temp
AS $$
DECLARE
    raised bigint;
BEGIN
    UPDATE holdfast.access_state SET version = version + 1 RETURNING version INTO STRICT raised;
    PERFORM pg_notify('holdfast_access', raised::text);
    RETURN raised;
END
$$;
REVOKE ALL ON FUNCTION holdfast.access_advance() FROM PUBLIC;

-- Adds a key; false if one of that id is there, which then stays as it is.
CREATE FUNCTION holdfast.access_add_key(id text, hash bytea, hint text, account text, name text, scopes text,
    daily_limit bigint, total_limit bigint, made_at bigint, expires_at bigint, revoked_at bigint)
RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    raised bigint := holdfast.access_advance();
BEGIN
    INSERT INTO holdfast.access_keys
    VALUES (access_add_key.id, access_add_key.hash, access_add_key.hint, access_add_key.account, access_add_key.name,
            access_add_key.scopes, access_add_key.daily_limit, access_add_key.total_limit, access_add_key.made_at,
            access_add_key.expires_at, access_add_key.revoked_at, raised)
    ON CONFLICT (id) DO NOTHING;
    RETURN FOUND;
END
$$;
REVOKE ALL ON FUNCTION holdfast.access_add_key(text, bytea, text, text, text, text, bigint, bigint, bigint, bigint, bigint)
    FROM PUBLIC;

-- Revokes a key, for ever; again changes nothing. What it is then; nothing if there is none.
CREATE FUNCTION holdfast.access_revoke_key(id text) RETURNS SETOF holdfast.access_keys
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    raised bigint := holdfast.access_advance();
BEGIN
    UPDATE holdfast.access_keys AS known SET revoked_at = holdfast.access_now(), version = raised
     WHERE known.id = access_revoke_key.id AND known.revoked_at IS NULL;
    RETURN QUERY SELECT * FROM holdfast.access_keys AS known WHERE known.id = access_revoke_key.id;
END
$$;
REVOKE ALL ON FUNCTION holdfast.access_revoke_key(text) FROM PUBLIC;

-- Sets those parts of a limit that are named in `parts` (per_day, in_total, within), to nothing where the value is NULL; the
-- others stay. What it is then. Two nodes that set different parts at once both have their way.
CREATE FUNCTION holdfast.access_set_limit(spender text, parts text[], per_day bigint, in_total bigint, within text)
RETURNS SETOF holdfast.access_limits
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    raised bigint := holdfast.access_advance();
    moment bigint := holdfast.access_now();
BEGIN
    RETURN QUERY
    INSERT INTO holdfast.access_limits AS known
    VALUES (access_set_limit.spender,
            CASE WHEN 'per_day' = ANY (access_set_limit.parts) THEN access_set_limit.per_day END,
            CASE WHEN 'in_total' = ANY (access_set_limit.parts) THEN access_set_limit.in_total END,
            CASE WHEN 'within' = ANY (access_set_limit.parts) THEN access_set_limit.within END,
            moment, raised)
    ON CONFLICT (spender) DO UPDATE
       SET per_day = CASE WHEN 'per_day' = ANY (access_set_limit.parts) THEN EXCLUDED.per_day ELSE known.per_day END,
           in_total = CASE WHEN 'in_total' = ANY (access_set_limit.parts) THEN EXCLUDED.in_total ELSE known.in_total END,
           within = CASE WHEN 'within' = ANY (access_set_limit.parts) THEN EXCLUDED.within ELSE known.within END,
           set_at = moment, version = raised
    RETURNING known.*;
END
$$;
REVOKE ALL ON FUNCTION holdfast.access_set_limit(text, text[], bigint, bigint, text) FROM PUBLIC;

-- Adds a signing key, which is the newest from then on, and forgets those that had a successor longer ago than `grace_ms`.
-- With `only_first` it does so only if there is none: whoever comes second uses what the first has made.
CREATE FUNCTION holdfast.access_add_signing_key(kid text, document bytea, grace_ms bigint, only_first boolean)
RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    moment bigint;
BEGIN
    PERFORM holdfast.access_advance();
    IF access_add_signing_key.only_first AND EXISTS (SELECT FROM holdfast.access_signing_keys) THEN
        RETURN false;
    END IF;
    moment := greatest(holdfast.access_now(), (SELECT max(made_at) + 1 FROM holdfast.access_signing_keys));
    INSERT INTO holdfast.access_signing_keys VALUES (access_add_signing_key.kid, moment, access_add_signing_key.document);
    DELETE FROM holdfast.access_signing_keys AS old
     USING holdfast.access_signing_keys AS successor
     WHERE successor.made_at > old.made_at AND successor.made_at <= moment - access_add_signing_key.grace_ms;
    RETURN true;
END
$$;
REVOKE ALL ON FUNCTION holdfast.access_add_signing_key(text, bytea, bigint, boolean) FROM PUBLIC;

-- Whether the caller is to tell the first admin key: of all who ask, one, until it was told. Who dies before telling it leaves it
-- to another after half a minute.
CREATE FUNCTION holdfast.access_claim_first_key() RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
AS $$
BEGIN
    UPDATE holdfast.access_state SET first_key_claimed_at = clock_timestamp()
     WHERE first_key_told_at IS NULL
       AND (first_key_claimed_at IS NULL OR first_key_claimed_at < clock_timestamp() - interval '30 seconds');
    RETURN FOUND;
END
$$;
REVOKE ALL ON FUNCTION holdfast.access_claim_first_key() FROM PUBLIC;

CREATE FUNCTION holdfast.access_tell_first_key() RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
AS $$
BEGIN
    UPDATE holdfast.access_state SET first_key_told_at = clock_timestamp() WHERE first_key_told_at IS NULL;
END
$$;
REVOKE ALL ON FUNCTION holdfast.access_tell_first_key() FROM PUBLIC;

-- symphony_ledger is a node. Nobody else, not even who audits the books, reads any of it.
GRANT SELECT ON holdfast.access_state, holdfast.access_keys, holdfast.access_limits, holdfast.access_signing_keys
    TO symphony_ledger;
GRANT EXECUTE ON FUNCTION
    holdfast.access_add_key(text, bytea, text, text, text, text, bigint, bigint, bigint, bigint, bigint),
    holdfast.access_revoke_key(text),
    holdfast.access_set_limit(text, text[], bigint, bigint, text),
    holdfast.access_add_signing_key(text, bytea, bigint, boolean),
    holdfast.access_claim_first_key(),
    holdfast.access_tell_first_key()
    TO symphony_ledger;
