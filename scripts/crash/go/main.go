// Go libraries as subjects of crash tests: `crash-subjects KIND setup|run|check`.
//
// Stores (bbolt, badger, pebble, goleveldb): setup stores pair 0; run stores pairs 1 to 3, each in
// one transaction or synced batch, and says "done N" after it; check demands whole values, both of a
// pair or neither, and each pair that was promised.
//
// Savers of files (renameio, atomic, writefile): setup saves text 0, run texts 1 to 3; check demands
// one of them, whole, and none that is older than the last promised.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble"
	"github.com/dgraph-io/badger/v4"
	"github.com/google/renameio/v2"
	"github.com/natefinch/atomic"
	"github.com/syndtr/goleveldb/leveldb"
	"github.com/syndtr/goleveldb/leveldb/opt"
	bolt "go.etcd.io/bbolt"
)

const rounds = 3

type pair [2]string

func value(key string) []byte { return bytes.Repeat([]byte(key), 2500) }

func halves(number int) pair {
	return pair{fmt.Sprintf("a%d", number), fmt.Sprintf("b%d", number)}
}

type store struct {
	put   func(pair) error
	all   func() (map[string][]byte, error)
	close func() error
}

var bucket = []byte("pairs")

func openBolt() (*store, error) {
	db, err := bolt.Open("db", 0o600, nil)
	if err != nil {
		return nil, err
	}
	put := func(p pair) error {
		return db.Update(func(tx *bolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists(bucket)
			if err != nil {
				return err
			}
			for _, key := range p {
				if err := b.Put([]byte(key), value(key)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	all := func() (map[string][]byte, error) {
		found := map[string][]byte{}
		err := db.View(func(tx *bolt.Tx) error {
			for err := range tx.Check() {
				return err
			}
			b := tx.Bucket(bucket)
			if b == nil {
				return errors.New("no bucket")
			}
			return b.ForEach(func(k, v []byte) error {
				found[string(k)] = bytes.Clone(v)
				return nil
			})
		})
		return found, err
	}
	return &store{put, all, db.Close}, nil
}

func openBadger() (*store, error) {
	options := badger.DefaultOptions("db").WithSyncWrites(true).WithLogger(nil).
		WithMemTableSize(1 << 20).WithValueLogFileSize(1 << 20).WithNumCompactors(2).
		WithValueThreshold(1 << 10).WithBlockCacheSize(1 << 20).WithMetricsEnabled(false)
	db, err := badger.Open(options)
	if err != nil {
		return nil, err
	}
	put := func(p pair) error {
		return db.Update(func(tx *badger.Txn) error {
			for _, key := range p {
				if err := tx.Set([]byte(key), value(key)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	all := func() (map[string][]byte, error) {
		found := map[string][]byte{}
		err := db.View(func(tx *badger.Txn) error {
			i := tx.NewIterator(badger.DefaultIteratorOptions)
			defer i.Close()
			for i.Rewind(); i.Valid(); i.Next() {
				v, err := i.Item().ValueCopy(nil)
				if err != nil {
					return err
				}
				found[string(i.Item().Key())] = v
			}
			return nil
		})
		return found, err
	}
	return &store{put, all, db.Close}, nil
}

func openPebble() (*store, error) {
	db, err := pebble.Open("db", &pebble.Options{Logger: quiet{}})
	if err != nil {
		return nil, err
	}
	put := func(p pair) error {
		batch := db.NewBatch()
		for _, key := range p {
			if err := batch.Set([]byte(key), value(key), nil); err != nil {
				return err
			}
		}
		return batch.Commit(pebble.Sync)
	}
	all := func() (map[string][]byte, error) {
		found := map[string][]byte{}
		i, err := db.NewIter(nil)
		if err != nil {
			return nil, err
		}
		for ok := i.First(); ok; ok = i.Next() {
			found[string(i.Key())] = bytes.Clone(i.Value())
		}
		return found, errors.Join(i.Error(), i.Close())
	}
	return &store{put, all, db.Close}, nil
}

type quiet struct{}

func (quiet) Infof(string, ...any)           {}
func (quiet) Errorf(format string, a ...any) { log.Printf(format, a...) }
func (quiet) Fatalf(format string, a ...any) { log.Fatalf(format, a...) }

func openLevel() (*store, error) {
	db, err := leveldb.OpenFile("db", nil)
	if err != nil {
		return nil, err
	}
	put := func(p pair) error {
		batch := new(leveldb.Batch)
		for _, key := range p {
			batch.Put([]byte(key), value(key))
		}
		return db.Write(batch, &opt.WriteOptions{Sync: true})
	}
	all := func() (map[string][]byte, error) {
		found := map[string][]byte{}
		i := db.NewIterator(nil, nil)
		defer i.Release()
		for i.Next() {
			found[string(i.Key())] = bytes.Clone(i.Value())
		}
		return found, i.Error()
	}
	return &store{put, all, db.Close}, nil
}

var stores = map[string]func() (*store, error){
	"bbolt": openBolt, "badger": openBadger, "pebble": openPebble, "goleveldb": openLevel,
}

var savers = map[string]func([]byte) error{
	"renameio":  func(text []byte) error { return renameio.WriteFile("file", text, 0o644) },
	"atomic":    func(text []byte) error { return atomic.WriteFile("file", bytes.NewReader(text)) },
	"writefile": func(text []byte) error { return os.WriteFile("file", text, 0o644) },
}

func promised() ([]int, error) {
	text, err := os.ReadFile(os.Getenv("WEFT_PROMISES"))
	if err != nil {
		return nil, err
	}
	numbers := []int{0}
	for _, word := range strings.Fields(strings.ReplaceAll(string(text), "done", "")) {
		number, err := strconv.Atoi(word)
		if err != nil {
			return nil, err
		}
		numbers = append(numbers, number)
	}
	return numbers, nil
}

func check(found map[string][]byte, promised []int) error {
	for key, stored := range found {
		if !bytes.Equal(stored, value(key)) {
			return fmt.Errorf("the value of %s is not as it was stored", key)
		}
	}
	for number := 0; number <= rounds; number++ {
		p := halves(number)
		if (found[p[0]] == nil) != (found[p[1]] == nil) {
			return fmt.Errorf("half of pair %d is there", number)
		}
	}
	for _, number := range promised {
		if found[halves(number)[0]] == nil {
			return fmt.Errorf("pair %d was promised, and is not there", number)
		}
	}
	return nil
}

func checkFile(promised []int) error {
	text, err := os.ReadFile("file")
	if err != nil {
		return err
	}
	for number := promised[len(promised)-1]; number <= rounds; number++ {
		if bytes.Equal(text, value(strconv.Itoa(number))) {
			return nil
		}
	}
	return fmt.Errorf("%d bytes that are no text since number %d", len(text), promised[len(promised)-1])
}

func act(kind, action string) error {
	var put func(int) error
	var verify func([]int) error
	if save, ok := savers[kind]; ok {
		put = func(number int) error { return save(value(strconv.Itoa(number))) }
		verify = checkFile
	} else if open, ok := stores[kind]; ok {
		s, err := open()
		if err != nil {
			return err
		}
		defer s.close()
		put = func(number int) error { return s.put(halves(number)) }
		verify = func(promised []int) error {
			found, err := s.all()
			if err != nil {
				return err
			}
			return check(found, promised)
		}
	} else {
		return fmt.Errorf("no subject is called %s", kind)
	}
	switch action {
	case "setup":
		return put(0)
	case "run":
		for number := 1; number <= rounds; number++ {
			if err := put(number); err != nil {
				return err
			}
			fmt.Println("done", number)
		}
		return nil
	}
	numbers, err := promised()
	if err != nil {
		return err
	}
	return verify(numbers)
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: crash-subjects KIND setup|run|check")
	}
	if err := act(os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}
