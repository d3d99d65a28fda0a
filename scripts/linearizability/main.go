// Histories of several mounts of one cell, judged by porcupine, a linearizability checker that is not weft's.
//
// Each mount is a process of its own, with a link to the server, and one from the other mounts, that can be cut. Threads on all of them do
// the same few operations on the same few names, and note when each began, when it returned, and with
// what. Porcupine then looks for an order of all of them that one machine could have done one after the
// other, each between its beginning and its return.
//
// What is judged, and as what:
//
//	register  pwrite and pread of eight bytes: the last value written is read
//	name      open(O_CREAT|O_EXCL), unlink, stat: a name is there or not
//	link      link(2) to it, unlink, stat: the same
//	rename    of one name to a name of each thread's own: one of all gets it
//	append    O_APPEND of eight bytes, and all of the file: the list of what was appended
//	mmap      a mapping never goes back, and shows the last write soon (its pages are dropped a moment after
//	          another has written, so it is not linearizable: that is stated, and judged as stated)
//
// With faults (kill -9 of a mount, SIGSTOP, a link to the server or from the other mounts that is cut, kill -9 of
// the server) an operation ends with fsync,
// also one that reads: what a machine has not told the server when it is lost for longer than an epoch never
// happened. One that fails may have happened or not: it may take effect at any later time, and a read that
// fails counts for nothing.
//
// Two renames of one name to the same new name are not among the operations: if the second looks the old
// name up before the first has moved it, and the new one after, the kernel finds one file under both names
// and reports success without asking (rename(2): "if oldpath and newpath are existing hard links referring to
// the same file, then rename() does nothing, and returns a success status").
package main

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/anishathalye/porcupine"
)

var (
	weft    = flag.String("weft", "", "the weft command")
	dir     = flag.String("dir", "", "an empty directory to work in")
	mounts  = flag.Int("mounts", 3, "mounts")
	threads = flag.Int("threads", 3, "threads on each")
	seconds = flag.Int("seconds", 30, "how long")
	faults  = flag.String("faults", "", "any of kill,stop,cut,peers,server with commas; none if empty")
	seed    = flag.Int64("seed", time.Now().UnixNano()%1_000_000, "of the choices")
	epoch   = flag.Int("epoch", 3, "seconds that a client's leases outlive it")
)

// How long the same names are used: so no history is too long to be judged.
const round = 2 * time.Second

// The outcome of an operation.
type outcome struct {
	// It may have happened, at any time from its call on, or never.
	unknown bool
	// Of one that is refused: the name is there, or is not.
	ok    bool
	value uint64
	list  string
}

type operation struct {
	key  string
	what string
	arg  uint64
}

func (o operation) String() string { return fmt.Sprintf("%s %s(%d)", o.key, o.what, o.arg) }

type recorder struct {
	sync.Mutex
	history []porcupine.Operation
	counts  map[string]int
	errors  map[string]int
}

var (
	record = recorder{counts: map[string]int{}, errors: map[string]int{}}
	start  = time.Now()
	unique atomic.Uint64
)

func now() int64 { return int64(time.Since(start)) }

// Does an operation and notes it.
func note(thread int, op operation, do func() (outcome, error)) {
	call := now()
	out, err := do()
	end := now()
	if err != nil {
		// Where nothing is mounted each try fails at once.
		defer time.Sleep(50 * time.Millisecond)
	}
	record.Lock()
	defer record.Unlock()
	if err != nil {
		record.errors[op.key[:1]+" "+op.what+": "+errnoName(err)]++
		if op.what == "read" || op.what == "stat" {
			return
		}
		out, end = outcome{unknown: true}, math.MaxInt64
	}
	record.counts[op.key[:1]+" "+op.what]++
	record.history = append(record.history, porcupine.Operation{
		ClientId: thread, Input: op, Call: call, Output: out, Return: end,
	})
}

func errnoName(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return err.Error()
}

// What is durable and with the server when it returns; nothing without faults.
func settle(f *os.File) error {
	if *faults == "" {
		return nil
	}
	return f.Sync()
}

func settleDir(path string) error {
	if *faults == "" {
		return nil
	}
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

func register(m *mount, thread int, rng *rand.Rand, key string) {
	path := filepath.Join(m.path, key)
	if rng.Intn(2) == 0 {
		value := unique.Add(1)
		note(thread, operation{key, "write", value}, func() (outcome, error) {
			f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
			if err != nil {
				return outcome{}, err
			}
			defer f.Close()
			var b [8]byte
			binary.LittleEndian.PutUint64(b[:], value)
			if _, err := f.WriteAt(b[:], 0); err != nil {
				return outcome{}, err
			}
			return outcome{ok: true}, settle(f)
		})
		return
	}
	note(thread, operation{key, "read", 0}, func() (outcome, error) {
		f, err := os.Open(path)
		if errors.Is(err, os.ErrNotExist) {
			return outcome{}, settleDir(m.path)
		}
		if err != nil {
			return outcome{}, err
		}
		defer f.Close()
		var b [8]byte
		n, err := f.ReadAt(b[:], 0)
		if n == 0 && (err == nil || err.Error() == "EOF") {
			return outcome{}, settle(f)
		}
		if n != 8 {
			return outcome{}, err
		}
		return outcome{value: binary.LittleEndian.Uint64(b[:])}, settle(f)
	})
}

// A call that says whether a name was there: nil, or the errno for "no".
func named(m *mount, thread int, op operation, call func() error, no error) {
	note(thread, op, func() (outcome, error) {
		err := call()
		if err != nil && !errors.Is(err, no) {
			return outcome{}, err
		}
		return outcome{ok: err == nil}, settleDir(m.path)
	})
}

func name(m *mount, thread int, rng *rand.Rand, key string, make func(path string) error) {
	path := filepath.Join(m.path, key)
	switch rng.Intn(4) {
	case 0, 1:
		named(m, thread, operation{key, "create", 0}, func() error { return make(path) }, os.ErrExist)
	case 2:
		named(m, thread, operation{key, "remove", 0}, func() error { return syscall.Unlink(path) }, os.ErrNotExist)
	default:
		named(m, thread, operation{key, "stat", 0}, func() error { _, err := os.Lstat(path); return err }, os.ErrNotExist)
	}
}

func create(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err == nil {
		f.Close()
	}
	return err
}

func rename(m *mount, thread int, rng *rand.Rand, key string) {
	path := filepath.Join(m.path, key)
	switch rng.Intn(4) {
	case 0:
		named(m, thread, operation{key, "create", 0}, func() error { return create(path) }, os.ErrExist)
	case 1, 2:
		to := filepath.Join(m.path, fmt.Sprintf("taken-%d", unique.Add(1)))
		named(m, thread, operation{key, "remove", 0}, func() error { return os.Rename(path, to) }, os.ErrNotExist)
	default:
		named(m, thread, operation{key, "stat", 0}, func() error { _, err := os.Lstat(path); return err }, os.ErrNotExist)
	}
}

func appending(m *mount, thread int, rng *rand.Rand, key string) {
	path := filepath.Join(m.path, key)
	if rng.Intn(3) == 0 {
		value := unique.Add(1)
		note(thread, operation{key, "append", value}, func() (outcome, error) {
			f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
			if err != nil {
				return outcome{}, err
			}
			defer f.Close()
			if _, err := f.WriteString(fmt.Sprintf("%07d,", value)); err != nil {
				return outcome{}, err
			}
			return outcome{ok: true}, settle(f)
		})
		return
	}
	note(thread, operation{key, "read", 0}, func() (outcome, error) {
		f, err := os.Open(path)
		if errors.Is(err, os.ErrNotExist) {
			return outcome{}, settleDir(m.path)
		}
		if err != nil {
			return outcome{}, err
		}
		defer f.Close()
		// One read: a list read in pieces is of several moments.
		b := make([]byte, 64<<10)
		n, err := syscall.Pread(int(f.Fd()), b, 0)
		if err != nil {
			return outcome{}, err
		}
		return outcome{list: string(b[:n])}, settle(f)
	})
}

// What one machine would do.
type state struct {
	there bool
	value uint64
	list  string
}

func step(s, input, output any) (bool, any) {
	was, op, out := s.(state), input.(operation), output.(outcome)
	switch op.what {
	case "write":
		return true, state{there: true, value: op.arg}
	case "append":
		return true, state{there: true, list: was.list + fmt.Sprintf("%07d,", op.arg)}
	case "read":
		return out.value == was.value && out.list == was.list, was
	case "create":
		if out.unknown {
			return true, state{there: true}
		}
		return out.ok == !was.there, state{there: true}
	case "remove":
		if out.unknown {
			return true, state{}
		}
		return out.ok == was.there, state{}
	default:
		return out.ok == was.there, was
	}
}

// Leaves out what may have happened and was seen by nobody: at the end of all it does no harm.
func withoutUnseen(all []porcupine.Operation) []porcupine.Operation {
	seen := map[uint64]bool{}
	for _, op := range all {
		out := op.Output.(outcome)
		seen[out.value] = true
		for _, part := range strings.Split(out.list, ",") {
			value, _ := strconv.ParseUint(part, 10, 64)
			seen[value] = true
		}
	}
	kept := all[:0:0]
	for _, op := range all {
		in := op.Input.(operation)
		isValue := in.what == "write" || in.what == "append"
		if op.Output.(outcome).unknown && isValue && !seen[in.arg] {
			continue
		}
		kept = append(kept, op)
	}
	return kept
}

func judge() bool {
	record.Lock()
	defer record.Unlock()
	byKey := map[string][]porcupine.Operation{}
	for _, op := range record.history {
		key := op.Input.(operation).key
		byKey[key] = append(byKey[key], op)
	}
	keys := make([]string, 0, len(byKey))
	for key := range byKey {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	model := porcupine.Model{
		Init: func() any { return state{} },
		Step: step,
		DescribeOperation: func(input, output any) string {
			return fmt.Sprintf("%v -> %+v", input, output)
		},
	}
	good, unsure := true, 0
	for _, key := range keys {
		byKey[key] = withoutUnseen(byKey[key])
		result, info := porcupine.CheckOperationsVerbose(model, byKey[key], 20*time.Second)
		switch result {
		case porcupine.Illegal:
			good = false
			page := filepath.Join(*dir, key+".html")
			_ = porcupine.VisualizePath(model, info, page)
			fmt.Printf("NOT LINEARIZABLE: %s, %d operations: see %s\n", key, len(byKey[key]), page)
			for _, op := range byKey[key] {
				fmt.Printf("  thread %d  %d..%d  %v -> %+v\n", op.ClientId, op.Call, op.Return, op.Input, op.Output)
			}
		case porcupine.Unknown:
			unsure++
		}
	}
	fmt.Printf("%d histories, %d operations: %v\n", len(keys), len(record.history), record.counts)
	if len(record.errors) > 0 {
		fmt.Printf("errors on the way: %v\n", record.errors)
		if *faults == "" {
			fmt.Println("there were ERRORS, and no faults")
			good = false
		}
	}
	if unsure > 0 {
		fmt.Printf("%d histories were too long to be judged\n", unsure)
	}
	return good
}

func work(m *mount, thread int, end time.Time) {
	rng := rand.New(rand.NewSource(*seed + int64(thread)))
	for time.Now().Before(end) {
		number := int(time.Since(start) / round)
		m.use.RLock()
		switch rng.Intn(5) {
		case 0:
			register(m, thread, rng, fmt.Sprintf("r-%d-%d", number, rng.Intn(2)))
		case 1:
			name(m, thread, rng, fmt.Sprintf("n-%d-%d", number, rng.Intn(2)), create)
		case 2:
			base := filepath.Join(m.path, "base")
			link := func(path string) error { return os.Link(base, path) }
			name(m, thread, rng, fmt.Sprintf("l-%d-%d", number, rng.Intn(2)), link)
		case 3:
			rename(m, thread, rng, fmt.Sprintf("m-%d", number))
		default:
			appending(m, thread, rng, fmt.Sprintf("a-%d", number))
		}
		m.use.RUnlock()
	}
}

func main() {
	flag.Parse()
	if *weft == "" || *dir == "" {
		flag.Usage()
		os.Exit(2)
	}
	fmt.Printf("seed %d\n", *seed)
	code := run()
	os.Exit(code)
}

func run() int {
	cell := newCell()
	defer cell.end()
	if err := cell.begin(); err != nil {
		fmt.Println(err)
		return 2
	}
	must(os.WriteFile(filepath.Join(cell.mounts[0].path, "base"), nil, 0o644))
	end := time.Now().Add(time.Duration(*seconds) * time.Second)
	var all sync.WaitGroup
	for i, m := range cell.mounts {
		for t := 0; t < *threads; t++ {
			all.Add(1)
			go func() {
				defer all.Done()
				work(m, i**threads+t, end)
			}()
		}
	}
	if *faults != "" {
		cell.weather(end)
	}
	all.Wait()
	good := judge()
	good = mapped(cell) && good
	if !good {
		return 1
	}
	fmt.Println("linearizable")
	return 0
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
