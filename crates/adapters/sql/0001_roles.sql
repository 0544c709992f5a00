-- The roles and the schema. Nothing of value exists yet when this runs, so nothing is ever open to the wrong one.
--
-- `holdfast migrate` applies these files in order, each in one transaction. By hand: psql --single-transaction -f FILE.
-- It needs a superuser, or a role with CREATEROLE that may create a schema in this database.
--
-- Roles belong to the whole server: a second database finds them there already. None of them can log in as made here. Either
-- let a role of yours act as one:   GRANT symphony_executor TO my_worker;
-- or let it log in itself:          ALTER ROLE symphony_executor LOGIN PASSWORD '…';
--
--   symphony_owner     owns everything here; nobody is it at run time
--   symphony_ingest    enqueues
--   symphony_executor  claims, completes, extends, releases, repairs
--   symphony_admin     replays what has failed, and reads
--   symphony_auditor   reads: pending, attempts, sequences
--   symphony_readonly  reads: pending, attempts

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['symphony_owner', 'symphony_ingest', 'symphony_executor', 'symphony_admin',
                                'symphony_auditor', 'symphony_readonly']
    LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = name) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', name);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                -- Another database of this server was migrated at the same moment.
                NULL;
            END;
        END IF;
    END LOOP;

    -- A function that runs with its owner's rights is as strong as its owner, so the owner is strong in nothing else.
    IF EXISTS (SELECT FROM pg_catalog.pg_roles
               WHERE rolname LIKE 'symphony\_%'
                 AND (rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls
                      OR (rolname = 'symphony_owner' AND rolcanlogin)))
    THEN
        RAISE EXCEPTION 'a role symphony_* is there already and may do more than it should'
            USING HINT = 'none may be superuser, make roles or databases, replicate or bypass row security;'
                         ' symphony_owner may not log in';
    END IF;

    -- To make things that belong to the owner one must be able to become it; a superuser is.
    IF NOT pg_catalog.pg_has_role(current_user, 'symphony_owner', 'MEMBER') THEN
        EXECUTE format('GRANT symphony_owner TO %I', current_user);
    END IF;
END
$$;

CREATE SCHEMA IF NOT EXISTS holdfast;
ALTER SCHEMA holdfast OWNER TO symphony_owner;
REVOKE ALL ON SCHEMA holdfast FROM PUBLIC;
COMMENT ON SCHEMA holdfast IS 'The leased payment outbox. Programs call its functions; nobody writes its tables.';

-- What was applied, when, and what it said then; `holdfast migrate` keeps it, and refuses a file that was changed afterwards.
CREATE TABLE holdfast.schema_migrations (
    version    integer PRIMARY KEY,
    name       text NOT NULL,
    checksum   text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
ALTER TABLE holdfast.schema_migrations OWNER TO symphony_owner;

-- Who logs in as one of them finds the functions without naming the schema. Temporary things are looked for last: searched
-- first, as PostgreSQL does if they are not named, a temporary table could stand in for a real one.
ALTER ROLE symphony_ingest SET search_path = holdfast, pg_temp;
ALTER ROLE symphony_executor SET search_path = holdfast, pg_temp;
ALTER ROLE symphony_admin SET search_path = holdfast, pg_temp;
ALTER ROLE symphony_auditor SET search_path = holdfast, pg_temp;
ALTER ROLE symphony_readonly SET search_path = holdfast, pg_temp;
