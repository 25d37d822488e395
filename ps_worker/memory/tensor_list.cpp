/* What many tensors are, and what they show, by torch's own functions, in a loop that is not Python's.
 *
 * Nothing of torch is compiled in: its functions come as pointers, out of the library that the process has
 * loaded. A tensor is the at::Tensor within its Python object, so far from the object's start. tensor_list.py
 * finds both, and compares with torch before anything uses this. All of it is called with the interpreter's
 * lock held, for objects that the caller keeps. 0: torch has thrown, and Python asks torch itself.
 */

#include <cstddef>
#include <cstdint>

typedef int64_t (*version_of)(const void *tensor);                      /* at::TensorBase::_version */
typedef int32_t (*fact_of)(const void *tensor, int64_t *out);           /* aoti_torch_get_...: 0 is success */
typedef const void *const *(*gradient_of)(const void *implementation);  /* c10::TensorImpl::grad */
typedef void (*increment_of)(const void *tensor);                       /* torch::autograd::impl::bump_version */
typedef void (*data_into)(const void *tensor, const void *data);        /* at::TensorBase::set_data */

static const void *implementation(const char *object, size_t offset)
{
    return *(const void *const *)(object + offset);
}

/* Version counter, address of the first element, number of elements. */
extern "C" int ps_look(const char *const *objects, size_t count, size_t offset, version_of version, fact_of address,
                       fact_of numel, int64_t *versions, int64_t *addresses, int64_t *numels)
{
    try {
        for (size_t index = 0; index < count; index++) {
            const char *tensor = objects[index] + offset;
            if (address(tensor, addresses + index) != 0 || numel(tensor, numels + index) != 0)
                return 0;
            versions[index] = version(tensor);
        }
    } catch (...) {
        return 0;
    }
    return 1;
}

/* Counts one more version of each, and says which it is. */
extern "C" int ps_increment(const char *const *objects, size_t count, size_t offset, increment_of increment,
                            version_of version, int64_t *versions)
{
    try {
        for (size_t index = 0; index < count; index++) {
            increment(objects[index] + offset);
            versions[index] = version(objects[index] + offset);
        }
    } catch (...) {
        return 0;
    }
    return 1;
}

/* Whether each one's gradient is the other tensor at its place, the same object. */
extern "C" int ps_have_gradients(const char *const *objects, const char *const *gradients, size_t count,
                                 size_t offset, gradient_of gradient)
{
    try {
        for (size_t index = 0; index < count; index++) {
            if (*gradient(implementation(objects[index], offset)) != implementation(gradients[index], offset))
                return 0;
        }
    } catch (...) {
        return 0;
    }
    return 1;
}

/* `tensor.data = other` for each, in order. */
extern "C" int ps_show(const char *const *objects, const char *const *others, size_t count, size_t offset,
                       data_into set_data)
{
    try {
        for (size_t index = 0; index < count; index++)
            set_data(objects[index] + offset, others[index] + offset);
    } catch (...) {
        return 0;
    }
    return 1;
}
