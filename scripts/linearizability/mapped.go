package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

const (
	// How soon a mapping shows what another has written. It is a moment; this is for a busy machine.
	soon = 10 * time.Second
	// Writes that are followed.
	writes = 50
)

// A mapping on one mount of a file that another writes: it never goes back, and shows each write soon.
func mapped(c *cell) bool {
	if len(c.mounts) < 2 {
		return true
	}
	good := true
	for _, kind := range []struct {
		what  string
		flags int
	}{{"shared", syscall.MAP_SHARED}, {"private", syscall.MAP_PRIVATE}} {
		name := "mapped-" + kind.what
		writer, err := os.Create(filepath.Join(c.mounts[0].path, name))
		must(err)
		put := func(value uint64) {
			var b [8]byte
			binary.LittleEndian.PutUint64(b[:], value)
			_, err := writer.WriteAt(b[:], 4096)
			must(err)
		}
		put(0)
		reader, err := os.Open(filepath.Join(c.mounts[1].path, name))
		must(err)
		page, err := syscall.Mmap(int(reader.Fd()), 0, 8192, syscall.PROT_READ, kind.flags)
		must(err)
		word := (*uint64)(unsafe.Pointer(&page[4096]))
		last, slowest := uint64(0), time.Duration(0)
		for value := uint64(1); value <= writes; value++ {
			put(value)
			begun := time.Now()
			for {
				seen := atomic.LoadUint64(word)
				if seen < last {
					fmt.Printf("a %s mapping went back from %d to %d\n", kind.what, last, seen)
					good = false
				}
				last = seen
				if seen == value {
					break
				}
				if time.Since(begun) > soon {
					fmt.Printf("a %s mapping is STALE: it shows %d, %v after %d was written\n",
						kind.what, seen, soon, value)
					good = false
					break
				}
				time.Sleep(time.Millisecond)
			}
			slowest = max(slowest, time.Since(begun))
			if !good {
				break
			}
		}
		fmt.Printf("%s mapping: %d writes of another mount seen, each within %v\n",
			kind.what, last, slowest.Round(time.Millisecond))
		must(syscall.Munmap(page))
		reader.Close()
		writer.Close()
	}
	return good
}
