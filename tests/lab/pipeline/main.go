// Command pipeline is a small stream processor: a source, workers that compute, and a sink that counts.
// Its options and what it prints stand in ../go_app.py.
package main

import (
	"crypto/sha256"
	"encoding/json"
	"flag"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
)

var (
	seconds = flag.Float64("seconds", 5, "ends by itself after this long")
	every   = flag.Float64("every", 1, "seconds between two lines")
	workers = flag.Int("workers", 4, "goroutines that compute")
	burstMS = flag.Float64("burst-ms", 0, "computes so long on each worker, then pauses; 0: all the time")
	everyMS = flag.Float64("every-ms", 300, "a burst each so many milliseconds")
	askMS   = flag.Float64("ask-ms", 7, "a short request each so many milliseconds")
	name    = flag.String("name", "", "what /proc/PID/comm is to say")
)

// unit is a piece of work: 32 KiB through SHA-256, ten times; some tenths of a millisecond of CPU.
func unit(block []byte) byte {
	sum := byte(0)
	for range 10 {
		digest := sha256.Sum256(block)
		sum ^= digest[0]
		block[0] = sum
	}
	return sum
}

func cpuSeconds() float64 {
	var used syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &used) != nil {
		return 0
	}
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
}

func work(in <-chan struct{}, out chan<- byte) {
	block := make([]byte, 32<<10)
	for range in {
		out <- unit(block)
	}
}

// answers is a service beside the pipeline: it takes one unit each ask-ms, and how late that is done is kept.
type answers struct {
	mutex sync.Mutex
	late  []float64
}

func (a *answers) serve() {
	block := make([]byte, 32<<10)
	for due := time.Now(); ; due = due.Add(time.Duration(*askMS * 1e6)) {
		if wait := time.Until(due); wait > 0 {
			time.Sleep(wait)
		} else if wait < -time.Second {
			due = time.Now()
		}
		unit(block)
		a.mutex.Lock()
		a.late = append(a.late, 1e3*time.Since(due).Seconds())
		a.mutex.Unlock()
	}
}

// take returns the median and the 99th percentile in milliseconds, and begins anew.
func (a *answers) take() (float64, float64) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if len(a.late) == 0 {
		return 0, 0
	}
	slices.Sort(a.late)
	median, most := a.late[len(a.late)/2], a.late[len(a.late)*99/100]
	a.late = a.late[:0]
	return median, most
}

// source offers work all the time, or as many units as take burst-ms on every worker, each every-ms.
func source(in chan<- struct{}, end time.Time) {
	defer close(in)
	if *burstMS == 0 {
		for time.Now().Before(end) {
			in <- struct{}{}
		}
		return
	}
	block := make([]byte, 32<<10)
	began := cpuSeconds()
	for range 50 {
		unit(block)
	}
	units := int(float64(*workers) * *burstMS / 1e3 / ((cpuSeconds() - began) / 50))
	for due := time.Now(); due.Before(end); due = due.Add(time.Duration(*everyMS * 1e6)) {
		time.Sleep(time.Until(due))
		for range units {
			in <- struct{}{}
		}
	}
}

func main() {
	flag.Parse()
	if *name != "" {
		_ = os.WriteFile("/proc/self/comm", []byte(*name), 0)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	in, out := make(chan struct{}, *workers), make(chan byte, *workers)
	go source(in, time.Now().Add(time.Duration(*seconds*1e9)))
	var all sync.WaitGroup
	for range *workers {
		all.Go(func() { work(in, out) })
	}
	go func() { all.Wait(); close(out) }()
	lines := time.NewTicker(time.Duration(*every * 1e9))
	began, units, before, beside := time.Now(), 0, 0, &answers{}
	go beside.serve()
	say := func() {
		p50, p99 := beside.take()
		line, _ := json.Marshal(map[string]any{
			"p50_ms": p50, "p99_ms": p99,
			"load": "pipeline", "units": units, "units_per_second": float64(units-before) / *every,
			"cpu": cpuSeconds(), "wall": time.Since(began).Seconds(), "gomaxprocs": runtime.GOMAXPROCS(0),
		})
		before = units
		_, _ = os.Stdout.Write(append(line, '\n'))
	}
	say()
	for {
		select {
		case _, open := <-out:
			if !open {
				say()
				return
			}
			units++
		case <-lines.C:
			say()
		case <-stop:
			say()
			return
		}
	}
}
