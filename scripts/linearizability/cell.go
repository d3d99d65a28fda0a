package main

import (
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A link that can be cut: what comes to it goes to the server, or to what a mount listens on for others.
type link struct {
	sync.Mutex
	listener net.Listener
	network  string
	to       string
	cut      bool
	open     map[net.Conn]bool
	passed   int
}

func newLink(network, at, to string) *link {
	listener, err := net.Listen(network, at)
	must(err)
	l := &link{listener: listener, network: network, to: to, open: map[net.Conn]bool{}}
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			go l.pass(from)
		}
	}()
	return l
}

func (l *link) pass(from net.Conn) {
	to, err := net.Dial(l.network, l.to)
	if err != nil {
		from.Close()
		return
	}
	l.Lock()
	if l.cut {
		l.Unlock()
		from.Close()
		to.Close()
		return
	}
	l.open[from], l.open[to] = true, true
	l.passed++
	l.Unlock()
	done := make(chan bool, 2)
	one := func(a, b net.Conn) { _, _ = io.Copy(a, b); done <- true }
	go one(from, to)
	go one(to, from)
	<-done
	from.Close()
	to.Close()
	l.Lock()
	delete(l.open, from)
	delete(l.open, to)
	l.Unlock()
}

func (l *link) setCut(cut bool) {
	l.Lock()
	defer l.Unlock()
	if l.network == "unix" && l.cut != cut {
		// Where nothing passes nothing is connected to: of a socket, by its name.
		at := l.listener.Addr().String()
		away := at + ".cut"
		if cut {
			must(os.Rename(at, away))
		} else {
			must(os.Rename(away, at))
		}
	}
	l.cut = cut
	if cut {
		l.closeAll()
	}
}

// Ends what is open, for good.
func (l *link) hangUp() {
	l.Lock()
	defer l.Unlock()
	l.closeAll()
}

func (l *link) closeAll() {
	for c := range l.open {
		c.Close()
	}
}

// A mount, as a process of its own.
type mount struct {
	// Held by who uses the path: nothing is mounted there for a while after a kill.
	use   sync.RWMutex
	path  string
	store string
	link  *link
	// What other mounts reach this one by.
	peers   *link
	process *exec.Cmd
	log     *os.File
}

func isMounted(path string) bool {
	all, _ := os.ReadFile("/proc/self/mounts")
	return strings.Contains(string(all), " "+path+" ")
}

// The path that other mounts are told.
func (m *mount) socket() string { return m.path + ".peers" }

// Puts a link in the place of the socket that the mount listens on: a socket that has another name is
// connected to by that.
func (m *mount) takePeers() {
	passed := 0
	if m.peers != nil {
		// The mount has put its new socket in the place of the old link's.
		passed = m.peers.passed
		m.peers.listener.(*net.UnixListener).SetUnlinkOnClose(false)
		m.peers.listener.Close()
		m.peers.hangUp()
	}
	behind := m.socket() + ".behind"
	must(os.Rename(m.socket(), behind))
	m.peers = newLink("unix", m.socket(), behind)
	m.peers.passed = passed
}

func (m *mount) start() error {
	// Of a life that was killed, or of its link.
	_ = os.Remove(m.socket())
	m.process = exec.Command(*weft, "ringer", "mount", m.link.listener.Addr().String(), m.path,
		"--store", m.store, "--patience", "10", "--listen", "unix:"+m.socket())
	m.process.Stdout, m.process.Stderr = m.log, m.log
	if err := m.process.Start(); err != nil {
		return err
	}
	for i := 0; i < 600; i++ {
		if isMounted(m.path) {
			if _, err := os.Stat(m.path); err == nil {
				m.takePeers()
				return nil
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("%s is not mounted: see %s", m.path, m.log.Name())
}

// Kills it without a word, waits a while, and mounts again what is left.
func (m *mount) kill(away time.Duration) error {
	_ = m.process.Process.Kill()
	_ = m.process.Wait()
	time.Sleep(away)
	m.use.Lock()
	defer m.use.Unlock()
	_ = syscall.Unmount(m.path, syscall.MNT_DETACH)
	return m.start()
}

type cell struct {
	mounts  []*mount
	server  *exec.Cmd
	address string
	log     *os.File
}

func freePort() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	defer l.Close()
	return l.Addr().String()
}

func newCell() *cell {
	log, err := os.Create(filepath.Join(*dir, "server.log"))
	must(err)
	return &cell{address: freePort(), log: log}
}

func (c *cell) serve() error {
	c.server = exec.Command(*weft, "ringer", "serve", filepath.Join(*dir, "cell"),
		"--listen", c.address, "--epoch", fmt.Sprint(*epoch))
	c.server.Stdout, c.server.Stderr = c.log, c.log
	if err := c.server.Start(); err != nil {
		return err
	}
	for i := 0; i < 200; i++ {
		if conn, err := net.Dial("tcp", c.address); err == nil {
			conn.Close()
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("nobody listens at %s: see %s", c.address, c.log.Name())
}

func (c *cell) begin() error {
	if err := c.serve(); err != nil {
		return err
	}
	for i := 0; i < *mounts; i++ {
		path := filepath.Join(*dir, fmt.Sprintf("mount%d", i))
		must(os.MkdirAll(path, 0o755))
		log, err := os.Create(path + ".log")
		must(err)
		m := &mount{path: path, store: path + ".store", link: newLink("tcp", "127.0.0.1:0", c.address), log: log}
		c.mounts = append(c.mounts, m)
		if err := m.start(); err != nil {
			return err
		}
	}
	return nil
}

func (c *cell) end() {
	for _, m := range c.mounts {
		if m.process == nil {
			continue
		}
		_ = m.process.Process.Signal(syscall.SIGCONT)
		m.link.setCut(false)
		_ = m.process.Process.Signal(syscall.SIGTERM)
		done := make(chan bool)
		go func() { _ = m.process.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			_ = m.process.Process.Kill()
		}
		_ = syscall.Unmount(m.path, syscall.MNT_DETACH)
	}
	if c.server != nil {
		_ = c.server.Process.Signal(syscall.SIGTERM)
		_ = c.server.Wait()
	}
}

// One fault after the other, each on its own.
func (c *cell) weather(end time.Time) {
	rng := rand.New(rand.NewSource(*seed))
	kinds := strings.Split(*faults, ",")
	counts := map[string]int{}
	for {
		time.Sleep(time.Duration(500+rng.Intn(2500)) * time.Millisecond)
		if time.Now().Add(time.Second).After(end) {
			break
		}
		m := c.mounts[rng.Intn(len(c.mounts))]
		// Some shorter than an epoch, some longer.
		away := time.Duration(rng.Intn(2000**epoch)) * time.Millisecond
		kind := kinds[rng.Intn(len(kinds))]
		counts[kind]++
		switch kind {
		case "kill":
			must(m.kill(away))
		case "stop":
			_ = m.process.Process.Signal(syscall.SIGSTOP)
			time.Sleep(away)
			_ = m.process.Process.Signal(syscall.SIGCONT)
		case "cut":
			m.link.setCut(true)
			time.Sleep(away)
			m.link.setCut(false)
		case "peers":
			// Blocks go through the server meanwhile, if that can be reached.
			m.peers.setCut(true)
			time.Sleep(away)
			m.peers.setCut(false)
		case "server":
			_ = c.server.Process.Kill()
			_ = c.server.Wait()
			time.Sleep(away / 4)
			must(c.serve())
		default:
			panic("no such fault: " + kind)
		}
	}
	fmt.Printf("faults: %v\n", counts)
	direct := 0
	for _, m := range c.mounts {
		direct += m.peers.passed
	}
	fmt.Printf("connections of mounts to each other: %d\n", direct)
}
