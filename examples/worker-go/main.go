// A worker for one queue of an Evertick server, with nothing but the standard library.
//
//	EVERTICK_URL=http://127.0.0.1:8700 EVERTICK_API_KEY=evt_… go run . billing
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

const (
	slots     = 10               // attempts that run at once
	pollWait  = 20 * time.Second // how long the server waits for work
	stopGrace = 30 * time.Second // how long running handlers may take after SIGTERM
)

type Attempt struct {
	Token          string          `json:"token"`
	RunID          string          `json:"run_id"`
	Handler        string          `json:"handler"`
	Payload        json.RawMessage `json:"payload"`
	Attempt        int             `json:"attempt"`
	IdempotencyKey string          `json:"idempotency_key"`
	TimeoutSeconds int             `json:"timeout_seconds"`
}

type Outcome struct {
	Token     string `json:"token"`
	Result    string `json:"result"`
	Error     string `json:"error,omitempty"`
	Retryable *bool  `json:"retryable,omitempty"`
	Output    any    `json:"output,omitempty"`
}

// A Handler runs an attempt until ctx ends: at its timeout, when it was cancelled, or when its lease was lost.
type Handler func(ctx context.Context, attempt Attempt) (output any, err error)

// Permanent is an error that another attempt cannot help.
type Permanent struct{ error }

var handlers = map[string]Handler{
	"send_invoice": func(ctx context.Context, attempt Attempt) (any, error) {
		var payload struct{ Customer string }
		if err := json.Unmarshal(attempt.Payload, &payload); err != nil || payload.Customer == "" {
			return nil, Permanent{errors.New("the payload names no customer")}
		}
		// The key is the same on every attempt: pass it on to services that must not do this twice.
		log.Printf("an invoice for %s, once per %s", payload.Customer, attempt.IdempotencyKey)
		return map[string]string{"invoiced": payload.Customer}, nil
	},
	"sleep": func(ctx context.Context, attempt Attempt) (any, error) {
		var payload struct{ Seconds float64 }
		if err := json.Unmarshal(attempt.Payload, &payload); err != nil {
			return nil, Permanent{err}
		}
		log.Printf("sleeping, attempt %d", attempt.Attempt)
		select {
		case <-time.After(time.Duration(payload.Seconds * float64(time.Second))):
			return nil, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	},
}

type Worker struct {
	url, key, queue, id string

	lock    sync.Mutex
	running map[string]context.CancelFunc // by token
	done    sync.WaitGroup
	free    chan struct{} // has one item for each free slot
	beating sync.Once
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: worker QUEUE")
	}
	host, _ := os.Hostname()
	worker := &Worker{
		url:     os.Getenv("EVERTICK_URL"),
		key:     os.Getenv("EVERTICK_API_KEY"),
		queue:   os.Args[1],
		id:      fmt.Sprintf("%s-%d", host, os.Getpid()),
		running: map[string]context.CancelFunc{},
		free:    make(chan struct{}, slots),
	}
	for range slots {
		worker.free <- struct{}{}
	}
	stopping, _ := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	log.Printf("worker %s started on %s", worker.id, worker.queue)
	worker.poll(stopping)
	worker.finish()
	log.Print("worker stopped")
}

// poll leases attempts until stopping ends, and never more than there are free slots.
func (w *Worker) poll(stopping context.Context) {
	names := make([]string, 0, len(handlers))
	for name := range handlers {
		names = append(names, name)
	}
	for stopping.Err() == nil {
		room := w.takeSlots(stopping)
		if room == 0 {
			return
		}
		var lease struct {
			LeaseSeconds float64   `json:"lease_seconds"`
			Attempts     []Attempt `json:"attempts"`
		}
		err := w.post(stopping, "/queues/"+w.queue+"/lease", map[string]any{
			"worker_id": w.id, "max": room, "wait_seconds": pollWait.Seconds(), "handlers": names,
		}, &lease)
		for range room - len(lease.Attempts) {
			w.free <- struct{}{}
		}
		for _, attempt := range lease.Attempts {
			w.start(attempt, time.Duration(lease.LeaseSeconds*float64(time.Second)))
		}
		if err != nil && stopping.Err() == nil {
			log.Printf("leasing failed: %v", err)
			time.Sleep(time.Second)
		}
	}
}

// takeSlots waits for a free slot, and takes all that are free.
func (w *Worker) takeSlots(stopping context.Context) int {
	select {
	case <-stopping.Done():
		return 0
	case <-w.free:
	}
	for taken := 1; ; taken++ {
		select {
		case <-w.free:
		default:
			return taken
		}
	}
}

// start runs an attempt in a goroutine, and records its outcome.
func (w *Worker) start(attempt Attempt, lease time.Duration) {
	w.beating.Do(func() { go w.keepAlive(lease / 3) })
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(attempt.TimeoutSeconds)*time.Second)
	w.lock.Lock()
	w.running[attempt.Token] = cancel
	w.lock.Unlock()
	w.done.Add(1)
	go func() {
		defer w.done.Done()
		defer cancel()
		output, err := call(ctx, attempt)
		w.record(outcomeOf(attempt.Token, output, err)) // its lease is kept alive until it is recorded
		w.lock.Lock()
		delete(w.running, attempt.Token)
		w.lock.Unlock()
		w.free <- struct{}{}
	}()
}

// call runs the handler of an attempt. A panic is a failure of this attempt alone.
func call(ctx context.Context, attempt Attempt) (output any, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("the handler panicked: %v", reason)
		}
	}()
	return handlers[attempt.Handler](ctx, attempt)
}

func outcomeOf(token string, output any, err error) Outcome {
	var permanent Permanent
	no := false
	switch {
	case err == nil:
		return Outcome{Token: token, Result: "success", Output: output}
	case errors.Is(err, context.DeadlineExceeded):
		return Outcome{Token: token, Result: "timed_out", Error: err.Error()}
	case errors.As(err, &permanent):
		return Outcome{Token: token, Result: "failed", Error: err.Error(), Retryable: &no}
	default:
		return Outcome{Token: token, Result: "failed", Error: err.Error()}
	}
}

// keepAlive sends heartbeats until the process ends.
func (w *Worker) keepAlive(every time.Duration) {
	for range time.Tick(every) {
		w.heartbeat()
	}
}

// heartbeat extends the leases of all that runs, and stops what the server says.
func (w *Worker) heartbeat() {
	w.lock.Lock()
	tokens := make([]string, 0, len(w.running))
	for token := range w.running {
		tokens = append(tokens, token)
	}
	w.lock.Unlock()
	if len(tokens) == 0 {
		return
	}
	var answer struct {
		Cancel []string `json:"cancel"`
	}
	err := w.post(context.Background(), "/workers/"+w.id+"/heartbeat", map[string]any{"tokens": tokens}, &answer)
	if err != nil {
		log.Printf("a heartbeat failed: %v", err)
		return
	}
	w.lock.Lock()
	defer w.lock.Unlock()
	for _, token := range answer.Cancel {
		if cancel, ok := w.running[token]; ok {
			cancel()
		}
	}
}

// record reports an outcome until the server has it. An outcome that came too late is answered as stale.
func (w *Worker) record(outcome Outcome) {
	for {
		var answer struct {
			Stale []string `json:"stale"`
		}
		body := map[string]any{"worker_id": w.id, "outcomes": []Outcome{outcome}}
		err := w.post(context.Background(), "/outcomes", body, &answer)
		if err == nil {
			if len(answer.Stale) > 0 {
				log.Printf("the outcome of %s came too late", outcome.Token)
			}
			return
		}
		log.Printf("recording failed, trying again: %v", err)
		time.Sleep(time.Second)
	}
}

// finish waits for running handlers, and cancels those that take longer than the grace.
func (w *Worker) finish() {
	timer := time.AfterFunc(stopGrace, func() {
		w.lock.Lock()
		defer w.lock.Unlock()
		for _, cancel := range w.running {
			cancel()
		}
	})
	defer timer.Stop()
	w.done.Wait()
}

func (w *Worker) post(ctx context.Context, path string, body, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, pollWait+10*time.Second)
	defer cancel()
	encoded, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+"/api/v1"+path, bytes.NewReader(encoded))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+w.key)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", response.Status, content)
	}
	return json.Unmarshal(content, answer)
}
