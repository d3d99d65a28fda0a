"""Python libraries as subjects of crash tests: subjects.py KIND setup|run|check

Stores keep pairs: `setup` stores pair 0; `run` stores pairs 1 to 3, each in one transaction where the
store has them, and says "done N" when the store says that it is durable; `check` demands whole
values, of a transaction both or neither, and each pair that was promised.

Savers keep one file: `setup` saves text 0, `run` texts 1 to 3; `check` demands one of them, whole,
and none that is older than the last one promised.
"""

import os
import sys

ROUNDS = 3


def value(key):
    return (key * 5000)[:5000].encode()


def promised():
    with open(os.environ["WEFT_PROMISES"]) as file:
        return [0] + [int(line.split()[1]) for line in file]


class Dbm:
    """The modules of the package dbm: no transactions; `sync` is to make durable."""

    atomic = False

    def __init__(self, name):
        self.module = __import__("dbm." + name, fromlist=["open"])

    def put(self, pair):
        with self.module.open("db", "c") as db:
            for key in pair:
                db[key] = value(key)
            if hasattr(db, "sync"):
                db.sync()

    def all(self):
        with self.module.open("db", "r") as db:
            return {key.decode(): db[key] for key in db.keys()}


class Lmdb:
    atomic = True

    def __init__(self, **options):
        import lmdb
        self.environment = lmdb.open("db", map_size=1 << 20, **options)

    def put(self, pair):
        with self.environment.begin(write=True) as transaction:
            for key in pair:
                transaction.put(key.encode(), value(key))

    def all(self):
        with self.environment.begin() as transaction:
            return {key.decode(): stored for key, stored in transaction.cursor()}


class Plyvel:
    """LevelDB, with write_batch and sync."""

    atomic = True

    def __init__(self):
        import plyvel
        self.db = plyvel.DB("db", create_if_missing=True)

    def put(self, pair):
        with self.db.write_batch(sync=True) as batch:
            for key in pair:
                batch.put(key.encode(), value(key))

    def all(self):
        return {key.decode(): stored for key, stored in self.db}


class OldLevel:
    """py-leveldb of 2016, which carries LevelDB 1.19 or older."""

    atomic = True

    def __init__(self):
        import leveldb
        self.leveldb = leveldb
        self.db = leveldb.LevelDB("db")

    def put(self, pair):
        batch = self.leveldb.WriteBatch()
        for key in pair:
            batch.Put(key.encode(), value(key))
        self.db.Write(batch, sync=True)

    def all(self):
        return {bytes(key).decode(): bytes(stored) for key, stored in self.db.RangeIter()}


class Rocks:
    atomic = True

    def __init__(self):
        import rocksdict
        self.rocksdict = rocksdict
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(1 << 20)
        self.db = rocksdict.Rdict("db", options)
        self.options = rocksdict.WriteOptions()
        self.options.sync = True

    def put(self, pair):
        batch = self.rocksdict.WriteBatch(raw_mode=True)
        for key in pair:
            batch.put(key.encode(), value(key))
        self.db.write(batch, self.options)

    def all(self):
        return {key.decode(): stored for key, stored in self.db.items()}


class Zodb:
    atomic = True

    def __init__(self):
        import transaction
        import ZODB
        import ZODB.FileStorage
        self.transaction = transaction
        self.root = ZODB.DB(ZODB.FileStorage.FileStorage("Data.fs")).open().root()

    def put(self, pair):
        for key in pair:
            self.root[key] = value(key)
        self.transaction.commit()

    def all(self):
        return dict(self.root)


class Diskcache:
    """A cache: it may forget, but what it gives must be right."""

    atomic = False

    def __init__(self):
        import diskcache
        # Small enough that values go to files of their own.
        self.cache = diskcache.Cache("db", disk_min_file_size=1000)

    def put(self, pair):
        for key in pair:
            self.cache[key] = value(key)

    def all(self):
        return {key: self.cache[key] for key in self.cache if key in self.cache}


class Saver:
    """Saves one text."""

    def __init__(self, save, load):
        self.save = save
        self.load = load


def tinydb_saver():
    import tinydb

    def save(text):
        with tinydb.TinyDB("file") as db:
            db.truncate()
            db.insert({"text": text})

    def load():
        with tinydb.TinyDB("file") as db:
            return db.all()[0]["text"]
    return Saver(save, load)


def dotenv_saver():
    import dotenv
    return Saver(lambda text: dotenv.set_key("file", "TEXT", text),
                 lambda: dotenv.dotenv_values("file")["TEXT"])


def configobj_saver():
    import configobj

    def save(text):
        config = configobj.ConfigObj("file")
        config["text"] = text
        config.write()
    return Saver(save, lambda: configobj.ConfigObj("file")["text"])


def atomicwrites_saver():
    import atomicwrites

    def save(text):
        with atomicwrites.atomic_write("file", overwrite=True) as file:
            file.write(text)
    return Saver(save, lambda: open("file").read())


def keyring_saver():
    import keyrings.alt.file

    class Here(keyrings.alt.file.PlaintextKeyring):
        file_path = os.path.abspath("file")
    return Saver(lambda text: Here().set_password("service", "user", text),
                 lambda: Here().get_password("service", "user"))


def joblib_saver():
    import joblib
    number = [0]
    memory = joblib.Memory(".", verbose=0)

    @memory.cache
    def computed():
        return value(str(number[0])).decode()

    def save(text):
        number[0] = int(text[0])
        computed.clear(warn=False)
        computed()
    return Saver(save, computed)


STORES = {
    "dumb": lambda: Dbm("dumb"), "gdbm": lambda: Dbm("gnu"), "ndbm": lambda: Dbm("ndbm"),
    "lmdb": Lmdb, "lmdb-nosync": lambda: Lmdb(sync=False), "leveldb": Plyvel, "old-leveldb": OldLevel,
    "rocksdb": Rocks, "zodb": Zodb, "diskcache": Diskcache,
}
SAVERS = {
    "tinydb": tinydb_saver, "dotenv": dotenv_saver, "configobj": configobj_saver,
    "atomicwrites": atomicwrites_saver, "keyring": keyring_saver, "joblib": joblib_saver,
}


def check_store(store):
    found = store.all()
    for key, stored in found.items():
        assert stored == value(key), f"the value of {key} is not as it was stored"
    for number in range(ROUNDS + 1):
        there = [half + str(number) in found for half in "ab"]
        assert not store.atomic or there[0] == there[1], f"half of pair {number} is there"
    for number in promised():
        for half in "ab":
            assert half + str(number) in found, f"pair {number} was promised: {sorted(found)}"


def check_saver(saver):
    found = saver.load()
    whole = [value(str(number)).decode() for number in range(promised()[-1], ROUNDS + 1)]
    assert found in whole, f"{found[:10] if found else found!r} is none of the texts saved"


def main():
    kind, action = sys.argv[1:]
    if kind in STORES:
        store = STORES[kind]()
        put = lambda number: store.put(["a" + str(number), "b" + str(number)])
        check = lambda: check_store(store)
    else:
        saver = SAVERS[kind]()
        put = lambda number: saver.save(value(str(number)).decode())
        check = lambda: check_saver(saver)
    if action == "setup":
        put(0)
    elif action == "run":
        for number in range(1, ROUNDS + 1):
            put(number)
            print("done", number, flush=True)
    else:
        check()


main()
