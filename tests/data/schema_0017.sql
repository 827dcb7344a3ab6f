BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0017');
CREATE TABLE connections (
	id VARCHAR(36) NOT NULL, 
	owner VARCHAR(200) NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	kind VARCHAR(64) NOT NULL, 
	public TEXT NOT NULL, 
	sealed TEXT, 
	shared TEXT NOT NULL, 
	created FLOAT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "connections" VALUES('id-1','owner-1','name-1','kind-1','public-1',NULL,'shared-1',1.0);
INSERT INTO "connections" VALUES('id-2','owner-2','name-2','kind-2','public-2',NULL,'shared-2',2.0);
CREATE TABLE documents (
	name VARCHAR(40) NOT NULL, 
	text TEXT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "documents" VALUES('plans','{"name": "root"}');
CREATE TABLE events (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	exec_id VARCHAR(40) NOT NULL, 
	time FLOAT NOT NULL, 
	kind VARCHAR(40) NOT NULL, 
	data TEXT NOT NULL
);
INSERT INTO "events" VALUES(1,'local-1',1700000001.5,'state','{"state": "SUBMITTED"}');
INSERT INTO "events" VALUES(2,'local-1',1700000002.5,'state','{"state": "PENDING_CRD_SCHEDULER"}');
INSERT INTO "events" VALUES(3,'local-1',1700000003.5,'state','{"state": "RUNNING"}');
INSERT INTO "events" VALUES(4,'local-1',1700000004.5,'state','{"state": "FINISHED"}');
CREATE TABLE exec_notes (
	exec_id VARCHAR(40) NOT NULL, 
	text TEXT NOT NULL, 
	PRIMARY KEY (exec_id)
);
INSERT INTO "exec_notes" VALUES('exec_id-1','text-1');
INSERT INTO "exec_notes" VALUES('exec_id-2','text-2');
CREATE TABLE exec_secrets (
	exec_id VARCHAR(40) NOT NULL, 
	sealed TEXT NOT NULL, 
	PRIMARY KEY (exec_id)
);
INSERT INTO "exec_secrets" VALUES('exec_id-1','sealed-1');
INSERT INTO "exec_secrets" VALUES('exec_id-2','sealed-2');
CREATE TABLE exec_tags (
	exec_id VARCHAR(40) NOT NULL, 
	tag VARCHAR(40) NOT NULL, 
	PRIMARY KEY (exec_id, tag)
);
INSERT INTO "exec_tags" VALUES('exec_id-1','tag-1');
INSERT INTO "exec_tags" VALUES('exec_id-2','tag-2');
CREATE TABLE exec_texts (
	number INTEGER NOT NULL, 
	text TEXT NOT NULL, 
	PRIMARY KEY (number)
);
INSERT INTO "exec_texts" VALUES(1,'text-1');
INSERT INTO "exec_texts" VALUES(2,'text-2');
CREATE TABLE exec_values (
	number INTEGER NOT NULL, 
	kind VARCHAR(10) NOT NULL, 
	name VARCHAR(100) NOT NULL, 
	"key" VARCHAR(100) NOT NULL, 
	value FLOAT, 
	text VARCHAR(100), 
	PRIMARY KEY (number, kind, name)
)
 WITHOUT ROWID

;
INSERT INTO "exec_values" VALUES(1,'metric','loss','loss',0.5,NULL);
INSERT INTO "exec_values" VALUES(1,'param','lr','lr',0.1,'0.1');
CREATE TABLE execs (
	number INTEGER NOT NULL, 
	id VARCHAR(40) NOT NULL, 
	creator VARCHAR(200) NOT NULL, 
	framework VARCHAR(100) NOT NULL, 
	app_name VARCHAR(200) NOT NULL, 
	args TEXT NOT NULL, 
	spec TEXT NOT NULL, 
	data_source TEXT, 
	elastic BOOLEAN NOT NULL, 
	num_worker INTEGER NOT NULL, 
	work_dir TEXT NOT NULL, 
	state VARCHAR(40) NOT NULL, 
	attempt INTEGER NOT NULL, 
	slots TEXT, 
	create_time FLOAT NOT NULL, 
	start_time FLOAT, 
	end_time FLOAT, 
	exit_code INTEGER, 
	message TEXT, 
	reason VARCHAR(40), 
	stop_requested BOOLEAN NOT NULL, 
	deleted BOOLEAN NOT NULL, pinned INTEGER, kind VARCHAR(20) DEFAULT 'training' NOT NULL, parent VARCHAR(40), bundle VARCHAR(64), progress TEXT, rest_after INTEGER, rested INTEGER, promoted FLOAT, wanted INTEGER, least INTEGER, 
	PRIMARY KEY (number), 
	UNIQUE (id)
);
INSERT INTO "execs" VALUES(1,'local-1','ada','PyTorch','näme','--exec-start PyTorch ','{"creator": "ada", "data": {"data_dir": "", "datastore_meta": "", "sources": []}, "environment": {"conda_env": null, "variables": {}}, "experiment": null, "id": "local-1", "kind": "training", "name": "n\u00e4me", "parent": null, "program": {"arguments": [], "attributes": {}, "bundle": null, "framework": "PyTorch", "main": null, "model_dir": null, "parameters": null, "user_cmd": null}, "repeats": null, "resources": {"cpu_limit": null, "device_num": 1, "device_share": 1.0, "device_type": null, "elastic": false, "gpu_limit": null, "labels": {}, "memory": null, "mig_profile": "", "min_workers": 1, "num_worker": 1, "pack": ""}, "scheduling": {"consumer": "", "pending_timeout": null, "priority": 5000, "user": "ada"}, "service": null, "sig_name": null, "version": 2}',NULL,0,1,'/work','FINISHED',1,NULL,1700000000.25,1700000001.5,1700000100.75,0,NULL,NULL,0,0,NULL,'kind-1',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "execs" VALUES(2,'local-2','ada','PyTorch','näme','--exec-start PyTorch ','{"creator": "ada", "data": {"data_dir": "", "datastore_meta": "", "sources": []}, "environment": {"conda_env": null, "variables": {}}, "experiment": null, "id": "local-2", "kind": "training", "name": "n\u00e4me", "parent": null, "program": {"arguments": [], "attributes": {}, "bundle": null, "framework": "PyTorch", "main": null, "model_dir": null, "parameters": null, "user_cmd": null}, "repeats": null, "resources": {"cpu_limit": null, "device_num": 1, "device_share": 1.0, "device_type": null, "elastic": false, "gpu_limit": null, "labels": {}, "memory": null, "mig_profile": "", "min_workers": 1, "num_worker": 1, "pack": ""}, "scheduling": {"consumer": "", "pending_timeout": null, "priority": 5000, "user": "ada"}, "service": null, "sig_name": null, "version": 2}','[{"type": "fs"}]',1,1,'/work','RUNNING',2,'["cpu-0", "cpu-1"]',1700000000.25,1700000001.5,NULL,NULL,NULL,NULL,0,0,2,'kind-2',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "execs" VALUES(3,'local-3','ada','PyTorch','näme','--exec-start PyTorch ','{"creator": "ada", "data": {"data_dir": "", "datastore_meta": "", "sources": []}, "environment": {"conda_env": null, "variables": {}}, "experiment": null, "id": "local-3", "kind": "training", "name": "n\u00e4me", "parent": null, "program": {"arguments": [], "attributes": {}, "bundle": null, "framework": "PyTorch", "main": null, "model_dir": null, "parameters": null, "user_cmd": null}, "repeats": null, "resources": {"cpu_limit": null, "device_num": 1, "device_share": 1.0, "device_type": null, "elastic": false, "gpu_limit": null, "labels": {}, "memory": null, "mig_profile": "", "min_workers": 1, "num_worker": 1, "pack": ""}, "scheduling": {"consumer": "", "pending_timeout": null, "priority": 5000, "user": "ada"}, "service": null, "sig_name": null, "version": 2}',NULL,0,1,'/work','PENDING_CRD_SCHEDULER',3,NULL,1700000000.25,NULL,NULL,NULL,NULL,NULL,0,0,NULL,'kind-3',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "execs" VALUES(7,'local-7','ada','PyTorch','näme','--exec-start PyTorch ','{"creator": "ada", "data": {"data_dir": "", "datastore_meta": "", "sources": []}, "environment": {"conda_env": null, "variables": {}}, "experiment": null, "id": "local-7", "kind": "training", "name": "n\u00e4me", "parent": null, "program": {"arguments": [], "attributes": {}, "bundle": null, "framework": "PyTorch", "main": null, "model_dir": null, "parameters": null, "user_cmd": null}, "repeats": null, "resources": {"cpu_limit": null, "device_num": 1, "device_share": 1.0, "device_type": null, "elastic": false, "gpu_limit": null, "labels": {}, "memory": null, "mig_profile": "", "min_workers": 1, "num_worker": 1, "pack": ""}, "scheduling": {"consumer": "", "pending_timeout": null, "priority": 5000, "user": "ada"}, "service": null, "sig_name": null, "version": 2}',NULL,0,1,'/work','ERROR',7,NULL,1700000000.25,1700000001.5,1700000100.75,3,'it''s 100%',NULL,0,0,NULL,'kind-4',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE experiment_run_parts (
	run INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	label TEXT NOT NULL, 
	version INTEGER NOT NULL, 
	exec_id VARCHAR(40), 
	code VARCHAR(60), 
	message TEXT, 
	PRIMARY KEY (run, position)
);
INSERT INTO "experiment_run_parts" VALUES(1,1,'label-1',1,NULL,NULL,NULL);
INSERT INTO "experiment_run_parts" VALUES(2,2,'label-2',2,NULL,NULL,NULL);
CREATE TABLE experiment_runs (
	number INTEGER NOT NULL, 
	object INTEGER NOT NULL, 
	version INTEGER NOT NULL, 
	creator VARCHAR(200) NOT NULL, 
	run_key VARCHAR(255), 
	create_time FLOAT NOT NULL, 
	PRIMARY KEY (number)
);
INSERT INTO "experiment_runs" VALUES(1,1,1,'creator-1',NULL,1.0);
INSERT INTO "experiment_runs" VALUES(2,2,2,'creator-2',NULL,2.0);
CREATE TABLE experiments (
	search INTEGER NOT NULL, 
	id INTEGER NOT NULL, 
	parameters TEXT NOT NULL, 
	state VARCHAR(40) NOT NULL, 
	metric FLOAT, 
	measured TEXT, 
	metrics TEXT, 
	exec_id VARCHAR(40), 
	resource INTEGER, 
	bracket INTEGER NOT NULL, 
	rung INTEGER NOT NULL, 
	origin INTEGER, 
	told INTEGER, 
	rungs TEXT, 
	start_time FLOAT, 
	end_time FLOAT, 
	message TEXT, 
	PRIMARY KEY (search, id)
);
INSERT INTO "experiments" VALUES(1,1,'parameters-1','state-1',NULL,NULL,NULL,NULL,NULL,1,1,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "experiments" VALUES(2,2,'parameters-2','state-2',NULL,NULL,NULL,NULL,NULL,2,2,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE favorites (
	user VARCHAR(200) NOT NULL, 
	exec_id VARCHAR(40) NOT NULL, 
	PRIMARY KEY (user, exec_id)
);
INSERT INTO "favorites" VALUES('user-1','exec_id-1');
INSERT INTO "favorites" VALUES('user-2','exec_id-2');
CREATE TABLE holdings (
	number INTEGER NOT NULL, 
	exec_id VARCHAR(40) NOT NULL, 
	user VARCHAR(200) NOT NULL, 
	consumer TEXT NOT NULL, 
	slot VARCHAR(100) NOT NULL, 
	kind VARCHAR(20) NOT NULL, 
	share FLOAT NOT NULL, 
	since FLOAT NOT NULL, 
	until FLOAT, 
	PRIMARY KEY (number)
);
INSERT INTO "holdings" VALUES(1,'local-2','ada','/local','cpu-0','cpu',0.5,1700000001.5,NULL);
INSERT INTO "holdings" VALUES(2,'local-2','ada','/local','cpu-1','cpu',0.5,1700000001.5,NULL);
CREATE TABLE models (
	number INTEGER NOT NULL, 
	name VARCHAR(63) NOT NULL, 
	creator VARCHAR(200) NOT NULL, 
	shared TEXT NOT NULL, 
	profile TEXT NOT NULL, 
	readme TEXT NOT NULL, 
	started BOOLEAN NOT NULL, 
	traffic TEXT NOT NULL, 
	space VARCHAR(200), 
	create_time FLOAT NOT NULL, 
	update_time FLOAT NOT NULL, 
	start_time FLOAT, 
	message TEXT, 
	PRIMARY KEY (number), 
	UNIQUE (name)
);
INSERT INTO "models" VALUES(1,'name-1','creator-1','shared-1','profile-1','readme-1',0,'traffic-1',NULL,1.0,1.0,NULL,NULL);
INSERT INTO "models" VALUES(2,'name-2','creator-2','shared-2','profile-2','readme-2',0,'traffic-2',NULL,2.0,2.0,NULL,NULL);
CREATE TABLE revisions (
	model INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	description TEXT NOT NULL, 
	bundle VARCHAR(64) NOT NULL, 
	size INTEGER NOT NULL, 
	creator VARCHAR(200) NOT NULL, 
	create_time FLOAT NOT NULL, 
	state VARCHAR(20) NOT NULL, 
	exec_id VARCHAR(40), 
	source TEXT, 
	message TEXT, 
	PRIMARY KEY (model, number)
);
INSERT INTO "revisions" VALUES(1,1,'description-1','bundle-1',1,'creator-1',1.0,'state-1',NULL,NULL,NULL);
INSERT INTO "revisions" VALUES(2,2,'description-2','bundle-2',2,'creator-2',2.0,'state-2',NULL,NULL,NULL);
CREATE TABLE runtimes (
	name VARCHAR(63) NOT NULL, 
	creator VARCHAR(200) NOT NULL, 
	description TEXT NOT NULL, 
	create_time FLOAT NOT NULL, 
	update_time FLOAT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "runtimes" VALUES('name-1','creator-1','description-1',1.0,1.0);
INSERT INTO "runtimes" VALUES('name-2','creator-2','description-2',2.0,2.0);
CREATE TABLE saved_models (
	name VARCHAR(63) NOT NULL, 
	version INTEGER NOT NULL, 
	creator VARCHAR(200) NOT NULL, 
	bundle VARCHAR(64) NOT NULL, 
	size INTEGER NOT NULL, 
	source TEXT NOT NULL, 
	space VARCHAR(200), 
	create_time FLOAT NOT NULL, 
	PRIMARY KEY (name, version)
);
INSERT INTO "saved_models" VALUES('name-1',1,'creator-1','bundle-1',1,'source-1',NULL,1.0);
INSERT INTO "saved_models" VALUES('name-2',2,'creator-2','bundle-2',2,'source-2',NULL,2.0);
CREATE TABLE search_algorithms (
	name VARCHAR(64) NOT NULL, 
	creator VARCHAR(200) NOT NULL, 
	description TEXT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "search_algorithms" VALUES('name-1','creator-1','description-1');
INSERT INTO "search_algorithms" VALUES('name-2','creator-2','description-2');
CREATE TABLE searches (
	number INTEGER NOT NULL, 
	id VARCHAR(40) NOT NULL, 
	creator VARCHAR(200) NOT NULL, 
	name VARCHAR(200) NOT NULL, 
	definition TEXT NOT NULL, 
	workload TEXT NOT NULL, 
	args TEXT NOT NULL, 
	data_source TEXT, 
	sealed TEXT, 
	targets TEXT, 
	bundle VARCHAR(64) NOT NULL, 
	seed INTEGER NOT NULL, 
	state VARCHAR(40) NOT NULL, 
	ending VARCHAR(20), 
	attempt INTEGER NOT NULL, 
	create_time FLOAT NOT NULL, 
	begin_time FLOAT NOT NULL, 
	end_time FLOAT, 
	used FLOAT NOT NULL, 
	message TEXT, 
	earlier TEXT, 
	plugin_state BLOB, 
	PRIMARY KEY (number), 
	UNIQUE (id)
);
INSERT INTO "searches" VALUES(1,'id-1','creator-1','name-1','definition-1','workload-1','args-1',NULL,NULL,NULL,'bundle-1',1,'state-1',NULL,1,1.0,1.0,NULL,1.0,NULL,NULL,NULL);
INSERT INTO "searches" VALUES(2,'id-2','creator-2','name-2','definition-2','workload-2','args-2',NULL,NULL,NULL,'bundle-2',2,'state-2',NULL,2,2.0,2.0,NULL,2.0,NULL,NULL,NULL);
CREATE TABLE sequences (
	name VARCHAR(40) NOT NULL, 
	last INTEGER NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "sequences" VALUES('exec',7);
CREATE TABLE submission_keys (
	user VARCHAR(200) NOT NULL, 
	"key" VARCHAR(255) NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	exec_id VARCHAR(40) NOT NULL, 
	time FLOAT NOT NULL, 
	PRIMARY KEY (user, "key")
);
INSERT INTO "submission_keys" VALUES('user-1','key-1','digest-1','exec_id-1',1.0);
INSERT INTO "submission_keys" VALUES('user-2','key-2','digest-2','exec_id-2',2.0);
CREATE TABLE team_objects (
	number INTEGER NOT NULL, 
	kind VARCHAR(20) NOT NULL, 
	owner VARCHAR(200) NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	shared TEXT NOT NULL, 
	newest INTEGER NOT NULL, 
	create_time FLOAT NOT NULL, 
	update_time FLOAT NOT NULL, 
	PRIMARY KEY (number)
);
INSERT INTO "team_objects" VALUES(1,'kind-1','owner-1','name-1','shared-1',1,1.0,1.0);
INSERT INTO "team_objects" VALUES(2,'kind-2','owner-2','name-2','shared-2',2,2.0,2.0);
CREATE TABLE team_uses (
	object INTEGER NOT NULL, 
	version INTEGER NOT NULL, 
	used INTEGER NOT NULL, 
	PRIMARY KEY (object, version, used)
);
INSERT INTO "team_uses" VALUES(1,1,1);
INSERT INTO "team_uses" VALUES(2,2,2);
CREATE TABLE team_versions (
	object INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	description TEXT NOT NULL, 
	content TEXT NOT NULL, 
	bundle VARCHAR(64), 
	size INTEGER NOT NULL, 
	create_time FLOAT NOT NULL, 
	PRIMARY KEY (object, number)
);
INSERT INTO "team_versions" VALUES(1,1,'description-1','content-1',NULL,1,1.0);
INSERT INTO "team_versions" VALUES(2,2,'description-2','content-2',NULL,2,2.0);
CREATE TABLE tokens (
	hash VARCHAR(64) NOT NULL, 
	user VARCHAR(200) NOT NULL, 
	expires FLOAT NOT NULL, id VARCHAR(16), name VARCHAR(64), scope VARCHAR(20), created FLOAT, 
	PRIMARY KEY (hash)
);
INSERT INTO "tokens" VALUES('0000000000000000000000000000000000000000000000000000000000000000','ada',4000000000.0,NULL,NULL,NULL,NULL);
CREATE TABLE users (
	name VARCHAR(64) NOT NULL, 
	password VARCHAR(255) NOT NULL, 
	role VARCHAR(20) NOT NULL, 
	created FLOAT NOT NULL, subject TEXT, 
	PRIMARY KEY (name)
);
INSERT INTO "users" VALUES('name-1','password-1','role-1',1.0,NULL);
INSERT INTO "users" VALUES('name-2','password-2','role-2',2.0,NULL);
CREATE INDEX execs_by_state ON execs (state);
CREATE INDEX holdings_by_until ON holdings (until);
CREATE INDEX execs_by_name ON execs (creator, framework, app_name);
CREATE INDEX submission_keys_by_time ON submission_keys (time);
CREATE INDEX execs_by_creator ON execs (creator, number);
CREATE INDEX execs_deleted ON execs (deleted) WHERE deleted IS 1;
CREATE UNIQUE INDEX connections_by_owner ON connections (owner, name);
CREATE INDEX ix_events_exec_id ON events (exec_id);
CREATE INDEX execs_by_bundle ON execs (bundle);
CREATE INDEX tokens_by_user ON tokens (user);
CREATE INDEX execs_by_parent ON execs (parent);
CREATE UNIQUE INDEX searches_by_name ON searches (creator, name);
CREATE INDEX searches_by_state ON searches (state);
CREATE INDEX searches_by_bundle ON searches (bundle);
CREATE INDEX experiments_by_metric ON experiments (search, metric);
CREATE INDEX experiments_by_exec ON experiments (exec_id);
CREATE INDEX experiments_by_state ON experiments (search, state);
CREATE INDEX models_by_creator ON models (creator);
CREATE INDEX revisions_by_bundle ON revisions (bundle);
CREATE INDEX revisions_by_exec ON revisions (exec_id);
CREATE INDEX saved_models_by_bundle ON saved_models (bundle);
CREATE INDEX exec_tags_by_tag ON exec_tags (tag, exec_id);
CREATE INDEX favorites_by_exec ON favorites (exec_id);
CREATE UNIQUE INDEX team_objects_by_name ON team_objects (kind, owner, name);
CREATE INDEX team_versions_by_bundle ON team_versions (bundle);
CREATE INDEX team_uses_by_used ON team_uses (used);
CREATE INDEX experiment_runs_by_object ON experiment_runs (object, number);
CREATE UNIQUE INDEX experiment_runs_by_key ON experiment_runs (creator, object, run_key);
CREATE INDEX experiment_run_parts_by_exec ON experiment_run_parts (exec_id);
CREATE INDEX exec_values_by_name ON exec_values (kind, "key", name, value, text, number);
CREATE INDEX execs_listed ON execs (kind, deleted, creator, state, app_name, framework, create_time, start_time, end_time, num_worker, parent, number, id);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('events',4);
COMMIT;
