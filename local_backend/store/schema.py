"""Tables of the database. Change them only together with a migration."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Float, Index, Integer, LargeBinary, MetaData, String, Table, Text

metadata = MetaData()

#: One row per exec; the only authority on its state.
execs = Table(
    "execs",
    metadata,
    Column("number", Integer, primary_key=True),  # the n of the id, from `sequences`
    Column("id", String(40), nullable=False, unique=True),
    Column("creator", String(200), nullable=False),
    Column("framework", String(100), nullable=False),
    Column("app_name", String(200), nullable=False),
    Column("args", Text, nullable=False),  # as shown: secret-looking values masked
    Column("spec", Text, nullable=False),  # Workload as JSON
    Column("kind", String(20), nullable=False, server_default="training"),  # as in workload.py
    Column("parent", String(40)),  # id of the exec or search that it is a part of
    Column("bundle", String(64)),  # digest of its code; NULL if an earlier version stored it
    Column("data_source", Text),  # JSON list as parsed, or NULL
    Column("elastic", Boolean, nullable=False),
    Column("num_worker", Integer, nullable=False),
    Column("work_dir", Text, nullable=False),
    Column("state", String(40), nullable=False),
    Column("attempt", Integer, nullable=False, default=0),  # 0: never given to a runner
    Column("slots", Text),  # JSON list of the slot ids that the current attempt holds
    Column("create_time", Float, nullable=False),  # epoch seconds, like the two below
    Column("start_time", Float),
    Column("end_time", Float),
    Column("exit_code", Integer),
    Column("message", Text),
    Column("reason", String(40)),
    Column("stop_requested", Boolean, nullable=False, default=False),
    Column("deleted", Boolean, nullable=False, default=False),  # hidden; removed with its files once the exec has ended
    Column("pinned", Integer),  # slots that an administrator has fixed; NULL: the scheduler decides
    Column("progress", Text),  # JSON object: last progress of the last attempt that has ended
    Column("rest_after", Integer),  # finished epochs after which an elastic exec rests; NULL: it trains to its end
    Column("rested", Integer),  # finished epochs after which the exec rests now; NULL: it does not rest
    Column("promoted", Float),  # epoch seconds: when `rest_after` was set last
    Column("wanted", Integer),  # kernels that a service can use now; NULL: as many as it has at least
    Column("least", Integer),  # kernels that a service has at least; NULL: as many as its workload says
    Index("execs_by_state", "state"),
    Index("execs_by_name", "creator", "framework", "app_name"),
    Index("execs_by_creator", "creator", "number"),
    Index("execs_by_bundle", "bundle"),
    Index("execs_by_parent", "parent"),
    # All columns that lists select and sort by, so that a list of 100,000 execs reads no submissions.
    Index("execs_listed", "kind", "deleted", "creator", "state", "app_name", "framework", "create_time", "start_time",
          "end_time", "num_worker", "parent", "number", "id"),
)
#: Partial. SQLite would otherwise use it for `false`, too, the value of nearly all rows.
Index("execs_deleted", execs.c.deleted, sqlite_where=execs.c.deleted.is_(True),
      postgresql_where=execs.c.deleted.is_(True))

#: The words by which an exec is found, in a table without its submission, which is much larger; see run_lists.py.
exec_texts = Table(
    "exec_texts",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("text", Text, nullable=False),
)

#: The parameters of execs and the last values of their metrics; see exec_values.py. One index serves both a search in
#: any case of letters, and an order.
exec_values = Table(
    "exec_values",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("kind", String(10), primary_key=True),  # see run_values.py, like the next two
    Column("name", String(100), primary_key=True),
    Column("key", String(100), nullable=False),
    Column("value", Float),  # NULL for a text
    Column("text", String(100)),  # the beginning of a text; NULL for a number
    Index("exec_values_by_name", "kind", "key", "name", "value", "text", "number"),
    sqlite_with_rowid=False,
)

#: The note of an exec; see labels.py.
exec_notes = Table(
    "exec_notes",
    metadata,
    Column("exec_id", String(40), primary_key=True),
    Column("text", Text, nullable=False),
)

#: The tags of execs.
exec_tags = Table(
    "exec_tags",
    metadata,
    Column("exec_id", String(40), primary_key=True),
    Column("tag", String(40), primary_key=True),
    Index("exec_tags_by_tag", "tag", "exec_id"),
)

#: The favorites of each user.
favorites = Table(
    "favorites",
    metadata,
    Column("user", String(200), primary_key=True),
    Column("exec_id", String(40), primary_key=True),
    Index("favorites_by_exec", "exec_id"),
)

#: The saved views of each user; see saved_views.py.
saved_views = Table(
    "saved_views",
    metadata,
    Column("user", String(200), primary_key=True),
    Column("name", String(60), primary_key=True),
    Column("query", Text, nullable=False),  # JSON object
)

#: The changes of execs that users see, in order; see events.py. SQLite would otherwise use the id of a deleted last
#: row again.
events = Table(
    "events",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("exec_id", String(40), nullable=False, index=True),
    Column("time", Float, nullable=False),  # epoch seconds
    Column("kind", String(40), nullable=False),
    Column("data", Text, nullable=False),  # JSON object
    sqlite_autoincrement=True,
)

#: Issued numbers. A number is never used twice, even when the submission fails.
sequences = Table(
    "sequences",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("last", Integer, nullable=False),
)

#: Users beside the user that the server runs as; see users.py.
users = Table(
    "users",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("password", String(255), nullable=False),  # argon2 hash
    Column("role", String(20), nullable=False),
    Column("created", Float, nullable=False),  # epoch seconds
    Column("subject", Text),  # the account of an OIDC issuer that logs on as this user; see users.py
)

#: Tokens as SHA-256, of logons and for programs, that are neither expired nor revoked.
tokens = Table(
    "tokens",
    metadata,
    Column("hash", String(64), primary_key=True),
    Column("user", String(200), nullable=False),
    Column("expires", Float, nullable=False),
    Column("id", String(16)),  # the rest is NULL for a token of a logon
    Column("name", String(64)),
    Column("scope", String(20)),
    Column("created", Float),  # epoch seconds
    Index("tokens_by_user", "user"),
)

#: Documents that are stored as a whole, as JSON: the resource plans.
documents = Table(
    "documents",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("text", Text, nullable=False),
)

#: Which exec held which slot, and when; see holdings.py. A row needs no row of the exec, which may be gone.
holdings = Table(
    "holdings",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("exec_id", String(40), nullable=False),
    Column("user", String(200), nullable=False),
    Column("consumer", Text, nullable=False),  # path of the resource plan that the slot counted for
    Column("slot", String(100), nullable=False),
    Column("kind", String(20), nullable=False),
    Column("share", Float, nullable=False),  # fraction of the slot
    Column("since", Float, nullable=False),  # epoch seconds
    Column("until", Float),  # NULL while it is held
    Index("holdings_by_until", "until"),
)

#: Servers that hold data, and how to access them; see connections.py.
connections = Table(
    "connections",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("owner", String(200), nullable=False),
    Column("name", String(64), nullable=False),
    Column("kind", String(64), nullable=False),
    Column("public", Text, nullable=False),  # JSON object: values that are not secret, and the sources of secrets
    Column("sealed", Text),  # JSON object of the secret values, sealed; NULL for none
    Column("shared", Text, nullable=False),  # JSON list of users, or `true` for all users
    Column("created", Float, nullable=False),  # epoch seconds
    Index("connections_by_owner", "owner", "name", unique=True),
)

#: Sealed secrets that execs need and no user may see; deleted when the exec is over. See exec_secrets.py.
exec_secrets = Table(
    "exec_secrets",
    metadata,
    Column("exec_id", String(40), primary_key=True),
    Column("sealed", Text, nullable=False),
)

#: Keys of submissions, each stored with its exec; see submission_keys.py.
submission_keys = Table(
    "submission_keys",
    metadata,
    Column("user", String(200), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("exec_id", String(40), nullable=False),  # the exec may no longer exist
    Column("time", Float, nullable=False),  # epoch seconds
    Index("submission_keys_by_time", "time"),
)

#: Searches for hyper-parameters; see searches.py. Times are epoch seconds.
searches = Table(
    "searches",
    metadata,
    Column("number", Integer, primary_key=True),  # the n of the id, from `sequences`
    Column("id", String(40), nullable=False, unique=True),
    Column("creator", String(200), nullable=False),
    Column("name", String(200), nullable=False),
    Column("definition", Text, nullable=False),  # Definition as JSON
    Column("workload", Text, nullable=False),  # Workload of its experiments as JSON, without id and parameters
    Column("args", Text, nullable=False),  # as shown: secret-looking values masked
    Column("data_source", Text),  # JSON list as parsed, or NULL
    Column("sealed", Text),  # secrets of the data sources, sealed; NULL for none
    Column("targets", Text),  # where to send metrics, as sealed JSON; NULL for none
    Column("bundle", String(64), nullable=False),  # digest of the code
    Column("seed", Integer, nullable=False),
    Column("state", String(40), nullable=False),
    Column("ending", String(20)),  # why the search starts no further experiment; NULL: it goes on
    Column("attempt", Integer, nullable=False),  # 1, and 1 more with each restart
    Column("create_time", Float, nullable=False),
    Column("begin_time", Float, nullable=False),  # of this attempt
    Column("end_time", Float),
    Column("used", Float, nullable=False),  # seconds of the earlier attempts
    Column("message", Text),
    Column("earlier", Text),  # JSON list: the results of another search that its algorithm knows from the beginning
    Column("plugin_state", LargeBinary),  # written by a plugin, which alone reads it; empty: its algorithm has no more
    Index("searches_by_name", "creator", "name", unique=True),
    Index("searches_by_state", "state"),
    Index("searches_by_bundle", "bundle"),
)

#: The experiments of searches. An exec runs each; it may be gone.
experiments = Table(
    "experiments",
    metadata,
    Column("search", Integer, primary_key=True),  # number of the search
    Column("id", Integer, primary_key=True),
    Column("parameters", Text, nullable=False),  # JSON object
    Column("state", String(40), nullable=False),
    Column("metric", Float),  # the objective; NULL while it is unknown
    Column("measured", Text),  # JSON object: the metrics that the algorithm needs
    Column("metrics", Text),  # JSON list of the additional metrics
    Column("exec_id", String(40)),
    Column("resource", Integer),
    Column("bracket", Integer, nullable=False),
    Column("rung", Integer, nullable=False),
    Column("origin", Integer),  # id of the experiment whose parameters this one trains longer
    Column("told", Integer),  # position in the order in which the algorithm learned the results
    Column("rungs", Text),  # JSON list of the results at the rungs that it has passed, if it goes on from rung to rung
    Column("start_time", Float),
    Column("end_time", Float),
    Column("message", Text),
    Index("experiments_by_state", "search", "state"),
    Index("experiments_by_metric", "search", "metric"),
    Index("experiments_by_exec", "exec_id"),
)

#: Installed algorithms of searches; their files are in the home.
search_algorithms = Table(
    "search_algorithms",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("creator", String(200), nullable=False),
    Column("description", Text, nullable=False),  # JSON object, as answers show it
)

#: Models that can answer requests; see models.py. Times are epoch seconds.
models = Table(
    "models",
    metadata,
    Column("number", Integer, primary_key=True),  # from `sequences`
    Column("name", String(63), nullable=False, unique=True),
    Column("creator", String(200), nullable=False),
    Column("shared", Text, nullable=False),  # JSON list of users, or `true` for all users
    Column("profile", Text, nullable=False),  # JSON object, as clients read it
    Column("readme", Text, nullable=False),
    Column("started", Boolean, nullable=False),  # whether it is meant to serve
    Column("traffic", Text, nullable=False),  # JSON object: number of a revision → its weight
    Column("space", String(200)),  # where the model was promoted to; NULL: nowhere
    Column("create_time", Float, nullable=False),
    Column("update_time", Float, nullable=False),
    Column("start_time", Float),  # of the last start; NULL: it never started
    Column("message", Text),  # why it does not serve although it is meant to
    Index("models_by_creator", "creator"),
)

#: The deployed versions of models.
revisions = Table(
    "revisions",
    metadata,
    Column("model", Integer, primary_key=True),  # number of the model
    Column("number", Integer, primary_key=True),
    Column("description", Text, nullable=False),  # JSON object: model.json
    Column("bundle", String(64), nullable=False),  # digest of its files
    Column("size", Integer, nullable=False),  # bytes of its files
    Column("creator", String(200), nullable=False),
    Column("create_time", Float, nullable=False),
    Column("state", String(20), nullable=False),  # see models.py
    Column("exec_id", String(40)),  # the exec that runs its kernels; NULL: none
    Column("source", Text),  # JSON object: the exec and the data that made it; NULL if it was uploaded
    Column("message", Text),
    Index("revisions_by_bundle", "bundle"),
    Index("revisions_by_exec", "exec_id"),
)

#: The environments that kernels run in, beside the built-in ones.
runtimes = Table(
    "runtimes",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("creator", String(200), nullable=False),
    Column("description", Text, nullable=False),  # JSON object, as clients read it
    Column("create_time", Float, nullable=False),
    Column("update_time", Float, nullable=False),
)

#: Models that were saved from finished execs, with their versions; see saved_models.py.
saved_models = Table(
    "saved_models",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("creator", String(200), nullable=False),
    Column("bundle", String(64), nullable=False),  # digest of its files
    Column("size", Integer, nullable=False),  # bytes of its files
    Column("source", Text, nullable=False),  # JSON object: the exec and the data that made it
    Column("space", String(200)),  # where it was promoted to; NULL: nowhere
    Column("create_time", Float, nullable=False),  # epoch seconds
    Index("saved_models_by_bundle", "bundle"),
)

#: Model definitions, hardware specifications and experiments, which teams share; see team_objects.py.
team_objects = Table(
    "team_objects",
    metadata,
    Column("number", Integer, primary_key=True),  # from `sequences`
    Column("kind", String(20), nullable=False),  # see team_objects.py
    Column("owner", String(200), nullable=False),
    Column("name", String(64), nullable=False),
    Column("shared", Text, nullable=False),  # JSON list of users, or `true` for all users
    Column("newest", Integer, nullable=False),  # number of the newest version
    Column("create_time", Float, nullable=False),  # epoch seconds
    Column("update_time", Float, nullable=False),
    Index("team_objects_by_name", "kind", "owner", "name", unique=True),
)

#: The versions of these objects. A version never changes.
team_versions = Table(
    "team_versions",
    metadata,
    Column("object", Integer, primary_key=True),  # number of the object
    Column("number", Integer, primary_key=True),
    Column("description", Text, nullable=False),
    Column("content", Text, nullable=False),  # JSON object
    Column("bundle", String(64)),  # digest of the code of a model definition; NULL for other objects
    Column("size", Integer, nullable=False),  # bytes of this code
    Column("create_time", Float, nullable=False),  # epoch seconds
    Index("team_versions_by_bundle", "bundle"),
)

#: Which version of an experiment uses which other objects.
team_uses = Table(
    "team_uses",
    metadata,
    Column("object", Integer, primary_key=True),  # number of the experiment
    Column("version", Integer, primary_key=True),
    Column("used", Integer, primary_key=True),  # number of the used object
    Index("team_uses_by_used", "used"),
)

#: Runs of experiments. One exec runs each of the model definitions.
experiment_runs = Table(
    "experiment_runs",
    metadata,
    Column("number", Integer, primary_key=True),  # from `sequences`
    Column("object", Integer, nullable=False),  # number of the experiment
    Column("version", Integer, nullable=False),
    Column("creator", String(200), nullable=False),
    Column("run_key", String(255)),  # idempotency key of the call that began it; NULL for none
    Column("create_time", Float, nullable=False),  # epoch seconds
    Index("experiment_runs_by_object", "object", "number"),
    Index("experiment_runs_by_key", "creator", "object", "run_key", unique=True),
)

#: The execs of a run, in the order of the model definitions.
experiment_run_parts = Table(
    "experiment_run_parts",
    metadata,
    Column("run", Integer, primary_key=True),  # number of the run
    Column("position", Integer, primary_key=True),  # from 0
    Column("label", Text, nullable=False),  # the model definition: OWNER/NAME
    Column("version", Integer, nullable=False),  # of the model definition
    Column("exec_id", String(40)),  # NULL: no exec yet; the exec may no longer exist
    Column("code", String(60)),  # why no exec was made; NULL: it was made, or was not tried yet
    Column("message", Text),
    Index("experiment_run_parts_by_exec", "exec_id"),
)
